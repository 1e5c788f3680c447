r"""Equality of answers: the verdict that a careful mathematician gives, by the kinds of answers.

A line has a gold answer, right answers behind <-, and wrong ones behind </-. What nobody can decide
without the problem is wrong.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strictgrade import Comparer, answer_text
from strictgrade.equality import explain_gold
from strictgrade.parse import _Formula
from verdicts import ROWS as TABLE
from verdicts import is_correct

CASES = r"""
# complex numbers and equations with them
z=1+i <- z=i+1 <- 1+i <- z = \frac{2i}{1+i} </- z=7-2i </- w=1+i </- z=1-i
x=2\pm3i <- x=2-3i, x=2+3i <- 2+3i, 2-3i </- x=1\pm i </- x=3\pm2i </- x=2+3i
-2i <- \frac{2}{i}
1+\sqrt{3}i <- 2e^{i\pi/3}
z=3-4i <- z = -4i+3 </- z=3+4i
w^2=-1 <- w^2+1=0
1+i </- 1-i
z^2=i </- z^2=-i
\pm i </- \pm 2i
|z|=2 </- |z|=3

# equations and statements
f(2)=3 <- f(2) = 3 <- 3 <- f(2)=\frac{6}{2} </- f(2)=4 </- f(3)=3 </- g(2)=3 </- 4
2+3=5 <- 5 <- 3+2=5 </- 2+3=6
5 <- 2+3=5 </- 2+3=6
I=2t <- I = 2t <- 2t <- I=t+t </- I=3t </- J=2t
\frac{dy}{dx}=2x <- \frac{dy}{dx} = x+x <- 2x </- \frac{dy}{dx}=3x </- \frac{dx}{dy}=2x
y=2x+3 <- y-2x=3 <- 2x-y+3=0 </- y=2x-3 </- y=3x+2
x^2+y^2=25 <- y^2+x^2=5^2 </- x^2+y^2=5 </- x^2-y^2=25
\frac{x^2}{4}+\frac{y^2}{9}=1 <- 9x^2+4y^2=36
\frac{x}{y}=2 <- x=2y
a_n=2^n-1 <- a_{n}=2^{n}-1 <- 2^n-1 </- a_n=2^{n-1} </- b_n=2^n-1
E=mc^2 <- E = c^2 m </- E=mc^3
P(A)=\frac{1}{3} <- \frac13 </- P(B)=\frac{1}{3}
f(x)=x^2+1 <- f(x)=1+x^2 <- f(t)=t^2+1 </- f(x)=x^2-1 </- f(x)=x^3+1
(x-1)^2+(y+2)^2=9 <- x^2-2x+y^2+4y=4
3x-4y+5=0 <- 4y=3x+5 </- 3x-4y-5=0
6 </- 2+3=6
0=0 </- 1=1
0=1 </- 0=2
x=x </- y=y
xy=1 </- xy=2
S=\pi r^2 </- S=2\pi r

# no number at all
\frac{1}{0} </- \frac{2}{0} </- \infty
\gamma^2-1 <- (\gamma-1)(\gamma+1) </- \gamma^2-2
\Gamma(5) <- 24 </- 120
\frac{0}{0}+1 </- \frac{0}{0}+2
\frac{x}{0} </- \frac{y}{0}
\zeta+1 </- \zeta+2
\tan\frac{\pi}{2} </- \tan\frac{3\pi}{2}
\log 0 </- -\infty
\beta^3 </- \beta^2
\lambda^2-\lambda <- \lambda(\lambda-1)

# products and sums
1440 <- 12\binom{10}{3}
20 <- 5(4)
2520 <- \binom{10}{3}\binom{7}{2}
\binom{8}{2}\cdot 3! <- 168
24 <- 2(3)(4)
6 <- (2)(3)
15 <- 5\cdot\frac{6}{2}
3\binom{4}{2} <- 18
10 <- 4\left(\frac{5}{2}\right)
\frac{8}{3} <- 2\left(\frac{4}{3}\right)
\frac{7}{3} <- 2\frac{1}{3}
-\frac{7}{3} <- -2\frac{1}{3}
-2\frac13 <- -\frac73
30 <- 5 \times 3! <- 5\cdot 3!
48 <- 2(4!)
2\frac{x}{3} <- \frac{2x}{3}
6\sqrt{2} <- 3(2\sqrt{2})
-6 <- 2(-3)
12 <- 3\cdot 2^2
2^3\cdot 3 <- 24
2^{10}\binom{5}{2} <- 10240
\frac{5}{2}\pi <- 2.5\pi
132 </- 12\binom{10}{3}
9 </- 5(4) </- 2(3)(4) </- 3\binom{4}{2}
141 </- \binom{10}{3}\binom{7}{2}
31 </- \binom{8}{2}\cdot 3
5 </- (2)(3) </- 2 \cdot 3
\frac{13}{2} </- 4\left(\frac{5}{2}\right)
\frac{10}{3} </- 2\left(\frac{4}{3}\right)
\frac{2}{3} </- 2\frac{1}{3}
26 </- 2(4!)
7 </- 3 \cdot 4
-1 </- 2(-3)
\frac{5}{3} </- -2\frac13
11 </- 5 \times 3!
1 </- 4(-3)

# exact numbers, however small, large or near
\frac1{2^{2017}} <- 2^{-2017} </- \frac1{2^{2016}}
\frac1{2004!} <- \frac{2005}{2005!} </- \frac2{2004!}
\frac12[(\frac13)^{100}+1] <- \frac{1}{2}+\frac{1}{2\cdot 3^{100}} </- \frac12[1-(\frac13)^{100}]
2^{100}+1 <- 1+4^{50} </- 2^{100}
\frac{2^{2016}}{2^{2017}} <- \frac12
2^{2004}-2^{2003} <- 2^{2003}
10^{50}+1-10^{50} <- 1
\sqrt{10^{40}+2\cdot10^{20}+1}-10^{20} <- 1
\frac{100!}{98!} <- 9900
100!-99! <- 99\cdot 99!
\frac{3^{2018}-3^{2017}}{2} <- 3^{2017}
1-\frac{1}{2^{100}} <- \frac{2^{100}-1}{2^{100}} </- 1 </- 1-\frac{1}{2^{101}}
\frac{1}{2^{50}} <- 2^{-50}
\left(1.6\times10^{-19},1\right) <- (1.60\times 10^{-19}, 1)
\frac{2^{1000}-1}{2^{1000}} <- 1-2^{-1000}
\sqrt{2}+\sqrt{3} <- \sqrt{5+2\sqrt{6}}
\cos 36^\circ <- \frac{1+\sqrt5}{4}
\sqrt[3]{2+\sqrt{5}}+\sqrt[3]{2-\sqrt{5}} <- \sqrt[3]{2+\sqrt5}-\sqrt[3]{\sqrt5-2}
\tan^{-1}(1) <- \frac{\pi}{4}
\arctan 1 <- \frac{\pi}{4}
0.1 <- \frac{1}{10}
3.5\times 10^{6} <- 3500000 </- 3.5\times 10^{5}
2^{1000}+1 </- 2^{1000}-1
(1.6\times10^{-19},1) </- (1.7\times10^{-19},1)
(\frac{1}{10^{20}},1) </- (\frac{2}{10^{20}},1)
\{\frac{1}{50!}, 2\} </- \{\frac{3}{50!}, 2\}
\frac{1}{10^{30}} </- 0
x+\frac{1}{10^{30}} </- x
\frac{x}{2^{200}} </- \frac{x}{2^{201}}
\sqrt{2}+10^{-30} </- \sqrt{2}
\left(\frac{5}{6}\right)^{300} </- \left(\frac{5}{6}\right)^{301}
\binom{2020}{1010}2^{-2020} </- \binom{2020}{1009}2^{-2020}
e^{-100} </- e^{-101}
1.0000001 </- 1.0000002\times 10
\frac{355}{113} </- \pi
e^{\pi\sqrt{163}} </- 262537412640768744
(1,10^{-12}) </- (1,10^{-13})
[0,10^{-15}] </- [0,10^{-16}]
0 </- 10^{-100}
\frac{22}{7} </- \pi
2^{31} </- 2147483647
99! </- 100!

# assignments by their names
a=3, b=4, c=5 <- c=5, b=4, a=3 <- (3,4,5) <- 3, 4, 5 <- (a,b,c)=(3,4,5) </- (5,4,3)
a=3, b=4, c=5 </- a=5, b=4, c=3 </- 5, 4, 3
(3,4,5) <- a=3, b=4, c=5 </- a=5, b=4, c=3
f(1)=2, f(2)=3 <- f(2)=3, f(1)=2 <- f(1)=2 \text{ and } f(2)=3 </- f(1)=3, f(2)=2 </- g(1)=2, g(2)=3
x=1, y=2 <- y = 2, x = 1 <- (1,2) </- x=2, y=1 </- y=1, x=2 </- (2,1) </- x=1 </- x=1, y=2, z=3
x=1\text{ or }x=-2 <- x=-2, x=1
x=1,2 <- x=2, x=1
m=2, n=\frac{1}{2} <- n=0.5, m=2 </- n=2, m=\frac12
x_1=1, x_2=3 <- x_2=3, x_1=1 </- x_1=3, x_2=1
p=-1, q=7 <- q=7 \text{ and } p=-1 </- p=7, q=-1
(x,y)=(1,2) <- x=1, y=2 <- (1,2) </- (x,y)=(2,1) </- (y,x)=(1,2) </- x=2, y=1
k=3 <- 3
A=2, B=3 </- B=2, A=3

# orders: tuples, lists, sets, rankings
(1,2,3) <- (1, 2, 3) <- 1,2,3 </- (3,2,1) </- 3,2,1 </- \{1,2,3\}
1,2,3 <- 3,2,1 <- \{3,1,2\} </- 1,2 </- 1,2,4
\{1,2,3\} <- \{3,1,2\}
(1,2),(3,4) <- (3,4),(1,2) </- (2,1),(3,4) </- (1,3),(2,4) </- (1,2,3,4)
\{(1,2),(3,4)\} <- (3,4), (1,2)
\text{B, A, C} <- B, A, C <- \text{B},\text{A},\text{C} </- \text{A, B, C} </- C, A, B
A, C <- A and C
-1, 1 <- 1, -1
\sqrt{2}, 3 <- 3, \sqrt2
1;2;3 <- 1, 2, 3
2, 3, \frac{3\pm i\sqrt3}2 <- a=2, a=3, a=\frac{3+i\sqrt3}{2}, a=\frac{3-i\sqrt3}{2}
2, 3, \frac{3\pm i\sqrt3}2 </- 2, 3, \frac{3+i\sqrt3}{2}
0, \pm 1 <- -1, 0, 1 </- \pm 1
(\pm 1, 2) <- (1,2), (-1,2)
[1,2,3] <- (1,2,3)
(0,0),(1,1) <- (0,0) \text{ and } (1,1)
\text{Alice, Bob} <- Alice, Bob
1, 1, 2 <- 1, 2, 1
\text{C}, \text{A}, \text{B} </- \text{A}, \text{B}, \text{C}
\text{Bob, Alice} </- \text{Alice, Bob}
B > A > C </- A > B > C
Q, P, R </- P, Q, R
1,1,2 </- 1,2,2 </- 1,2
\{1,2\} </- [1,2] </- 1
(1,2) </- 1

# units that scale
7\text{ thousand} <- 7000 </- 7
7 <- 7\text{ cm} <- 7\text{ kg} </- 7\text{K} </- 7\text{k} </- 7\text{M} </- 7\text{ million}
7 </- 7\text{ thousand} </- 7 \text{ hundred} </- 7\text{ dozen} </- 7\text{B} </- 7\text{ bn}
7\text{K} <- 7000 </- 7
2.5\text{ million} <- 2500000
2\text{ million} <- 2\cdot 10^6
50\% <- 0.5 <- 50\% </- 5\%
\frac{1}{2} <- 50\%
3\text{ dozen} <- 36
\$7 <- 7
7 \text{ dollars} <- \$7
3\text{ billion} <- 3\times10^9
12\text{ cents} <- 12
7000 <- 7\text{k}
1.5\text{M} <- 1500000
3 </- 3\text{ trillion}
5 </- 5 \text{ hundredths} </- 5 \text{ tenths} </- 5\text{ thousandths}
4 <- 4 \text{ pairs}
2 </- 2\text{ score}
7 \text{ kg} </- 7 \text{ g}
7 \text{ m} </- 7\text{ km}
3\text{ hours} </- 3\text{ minutes}
10\text{ cents} </- 10\text{ dollars}
6 </- 6\text{ percent of } 10

# words
\text{no} <- \text{No} <- No <- \textbf{NO} </- \text{yes} </- \text{not} </- n
\text{Yes} <- \text{yes} <- YES. </- \text{yse}
\text{odd} <- Odd </- \text{ood}
\text{True} <- true </- \text{False}
\text{Monday} <- monday
\text{none} <- None
\text{red} <- Red </- \text{blue}
\text{He} <- \text{he}
\text{Up} <- up
\text{isosceles triangle} <- Isosceles Triangle
\text{No} </- \text{on}
\text{A} </- \text{B}
\text{yes} </- 1
\text{Tie} </- \text{Lie}
a </- A
n </- N

# conditions and remarks behind an answer
n^2 <- n^2 \quad\text{for all }n\ge2 </- n^3 \quad\text{for all }n\ge2
n^2\quad\text{for all }n\ge2 <- n^2 </- n
2^n-1 \text{ for } n \geq 1 <- 2^n-1 </- 2^n
2^{n-1} <- 2^{n-1}\text{, where } n \text{ is a positive integer}
f(x)=2x <- f(x)=2x \text{ for all real } x
f(x)=2x \text{ for all } x\in\mathbb{R} <- f(x)=2x </- f(x)=3x \text{ for all } x \in \mathbb{R}
f(x)=2x, \forall x \in \mathbb{R} <- 2x
18.9 <- 18.9 \text{ (about 18.9 cards)}
\frac{170}{9} <- \frac{170}{9} \text{ (about 18.9 cards)}
\frac{170}{9} <- \frac{170}{9}\text{ cards (about 18.9 cards)}
\frac{170}{9} </- \frac{171}{9} \text{ (about 19 cards)}
\pi <- \pi \approx 3.14159
12\pi <- 12\pi \text{ (approximately 37.7)}
x=2k\pi, k\in\mathbb{Z} <- x=2k\pi, \quad k \in \mathbb{Z} </- x=k\pi, k\in\mathbb{Z}
2k\pi <- 2k\pi, k\in\mathbb{Z}
n(n+1) <- n(n+1), \text{ if } n>0
6 <- 6 \text{ (by symmetry)}
18 </- \frac{170}{9} \text{ (about 18 cards)}
n^2 \text{ if } n \text{ is even} </- n^2 \text{ if } n \text{ is odd}
5 \text{ (mod 7)} </- 5 \text{ (mod 8)}
n \equiv 1 \pmod 4 </- n \equiv 3 \pmod 4 </- n \equiv 1 \pmod 5
3 </- 4 \text{ if } n=3

# chains
52451256 <- \binom{26+9-1}{9}=\binom{34}{9}=52{,}451{,}256 </- \binom{34}{9}=52451257
\binom{34}{9} <- \binom{26+9-1}{9}=\binom{34}{9} </- \binom{34}{8}
x=\frac{4}{2}=2 <- 2 </- 4
2 <- x=\frac{4}{2}=2 </- x=\frac{4}{2}=3 </- 2=3
S=1+2+3=6 <- 6
6 <- S = 1+2+3 = 6 </- S=1+2+3=7
\frac{1}{2} <- P=\frac{3}{6}=\frac12 <- P = \frac{3}{6} = 0.5 </- P=\frac{3}{6}=\frac13
A=\pi r^2=9\pi <- 9\pi
(x+1)^2 <- x^2+2x+1=(x+1)^2
2\cdot 3\cdot 5=30 <- 30 </- 31
10! = 3628800 <- 3628800 </- 9! = 362880
3 </- 1=2=3

# alternatives
\frac{1}{2} \text{ OR } 0.5 <- \frac12 </- \frac13
12 OR 13 <- 13 <- 12 </- 14
\sqrt{2} OR 1.414 <- \sqrt{2} </- 2
1-\frac{1}{e} \text{ OR } 0.632 <- 1-e^{-1}
x=1 \text{ or } x=2 <- 1, 2 </- 1 </- x=1, x=3
(1,2) \text{ or } (3,4) <- (3,4) \text{ or } (1,2)

# sets, builders and intervals
\{x : x>1\} <- (1,\infty) <- x>1 </- (2,\infty) </- [1,\infty)
\{x \mid x>1\} <- \{x : x > 1\}
\{x \in \mathbb{R} : x \ge 2\} <- [2,\infty) </- (2,\infty)
\{x\mid -1<x<3\} <- (-1,3)
\{2k+1 : k\in\mathbb{Z}\} <- \{2k+1 \mid k \in \mathbb{Z}\} <- \{1+2k \mid k \in \mathbb{Z}\}
\{2k+1 : k\in\mathbb{Z}\} </- \{2k : k\in\mathbb{Z}\} </- \{2k+1 : k\in\mathbb{N}\}
\mathbb{R}\setminus\{1\} <- (-\infty,1)\cup(1,\infty) </- \mathbb{R} </- \mathbb{R}\setminus\{2\}
(0,1)\cup(2,3) <- (2,3)\cup(0,1) </- (0,1)\cup(2,4) </- (0,3)
x \in (0,1) <- 0<x<1
0<x<1 <- x\in(0,1) </- 0<x<2 </- 0<y<1 </- 0<x\le1
1\le x\le 2 <- 2\ge x\ge 1
x<\frac{1}{2} <- 2x<1 </- 2x>1
(-\infty, 0)\cup(0,\infty) <- x \neq 0
\{1\}\cup[2,3] <- [2,3]\cup\{1\} </- [2,3]
[\sqrt{2}, 2] <- [2^{1/2}, 2]
x\le 1 \text{ or } x\ge 3 <- (-\infty,1]\cup[3,\infty)
x=\{1,2\} <- 1, 2
x\in\{1,2\} <- 1, 2
a>b>0 <- 0<b<a </- b>a>0
\emptyset <- \{\} <- \varnothing </- \{\emptyset\} </- 0
\{x\mid x^2=4\} </- \{x\mid x^2=9\}
-x<1 </- x<-1
x \neq 0 </- x \neq 1 </- x = 0
x>1 </- x>1, x<3
\mathbb{Z} </- \mathbb{N}
\mathbb{Q} </- \mathbb{R}

# logarithms and powers
\log 2 <- \ln 2 </- \ln 3
\frac{\log 3}{\log 2} <- \log_2 3
\frac{\ln 3}{\ln 2} <- \log_2 3
\log 100 <- 2
\log_{10} 1000 <- 3
2\log n <- \ln n^2
n\log n <- n \ln n
\frac1{3(-2)^k} <- \frac13(-\frac12)^k </- \frac13(\frac12)^k </- \frac13(-2)^k
(-1)^{n+1} <- -(-1)^n </- (-1)^n
(-1)^n <- \cos(n\pi) </- 1
2^{n+1}-2^n <- 2^n
\frac{2^{n+1}}{4} <- 2^{n-1}
\frac{n!}{(n-2)!} <- n(n-1)
\binom{n}{2} <- \frac{n(n-1)}{2} </- \binom{n}{3} </- \frac{n(n+1)}{2}
\binom{n}{k} <- \frac{n!}{k!(n-k)!}
\left(\frac{1}{2}\right)^{n} <- 2^{-n}
e^{x+y} <- e^x e^y </- e^x+e^y
4^x <- 2^{2x}
\sqrt{a}\sqrt{b} <- \sqrt{ab}
|x| <- \sqrt{x^2} </- x
\sin^2 x <- 1-\cos^2 x </- \cos^2 x
\sin 2x <- 2\sin x\cos x </- 2\sin x
\tan x <- \frac{\sin x}{\cos x}
\log_2 8 <- 3
\frac{1}{x}+\frac{1}{y} <- \frac{x+y}{xy}
x^{-1} <- \frac{1}{x}
\lfloor \frac{n}{2}\rfloor <- \left\lfloor n/2 \right\rfloor </- \frac{n}{2}
\lfloor \frac{n}{2}\rfloor </- \lceil\frac{n}{2}\rceil
\sqrt[3]{x} <- x^{1/3}
\log_2 3 </- \ln 3 </- \log_3 2
\log_{10} 2 </- \ln 2
2^{n+1} </- 2^n
2^{n}+1 </- 2^{n+1}
n! </- (n+1)!
\frac{n(n-1)}{2} </- \frac{n(n+1)}{2}
(a+b)^2 </- a^2+b^2
\frac{1}{x+y} </- \frac1x+\frac1y
x^2y </- xy^2
a_1+a_2 </- a_1+a_3
\alpha+\beta </- \alpha-\beta
\sqrt{x+1} </- \sqrt{x}+1
x^{y^z} </- (x^y)^z
\log_a b </- \log_b a

# as JSON and models leave them
\frac{33}{100} <- \\frac{33}{100}
3\sqrt{13} <- 3\\sqrt{13}
\left( 3, \frac{\pi}{2} \right) <- \\left( 3, \\frac{\\pi}{2} \\right)
5\text{ cm} <- 5 \\text{ cm} \ \checkmark
\begin{pmatrix}1\\x\end{pmatrix} <- \\begin{pmatrix}1\\\\x\\end{pmatrix}
\begin{pmatrix}1\\x\end{pmatrix} <- \begin{bmatrix} 2/2 \\x\end{bmatrix}
\begin{pmatrix}1\\x\end{pmatrix} </- \begin{bmatrix}x\\1\end{bmatrix}
5 <- = 5 <- \approx 5 <- \text{The answer is 5} </- \ge 5 </- < 5 </- The answer is 6
5‰ <- 5 <- 0.005
150000000 <- 1.5e8
0.00015 <- 1.5e-4
\frac{1}{2} <- The answer is: $\frac{1}{2}$.
B <- \text{Option B} </- Option C
600 <- {\large 600} <- 600 \checkmark
(3, 4] <- ]3, 4]
(0,1)\cup[2,3) <- ]0,1[ \cup [2,3[
E_{1},E_{2} <- E_2, E_1 </- E_1,E_3
28\% <- 28 percent
I,II,III,IV <- \{I, II, III, IV\}
I,II,III <- II, III \text{ and } I </- I, II
\begin{cases}1 & \text{if } x>0\\2 & x<0\end{cases} <- \begin{cases}1,&x>0, \\ 2, & x<0.\end{cases}
45 <- 1+2+\cdots+9 = 45 <- |S| = 9 \cdot 5 = 45 <- \text{total} = 9\cdot 5 = 45
45 </- 1+2+\cdots+9 = 46 </- 45 = 1+2+\cdots
4210_{5} <- (4210)_5 </- 4210 \text{ (base 6)}
(4210)_{5} <- 4210 \text{ (base 5)}
\angle ABC <- \angle CBA </- \angle BCA
(10,-7) <- y=-7,\ x=10
5\% </- 5‰
n^2 </- n^2 \text{ if } n>2, \text{ otherwise } 0
2 </- 2 \text{ if } n \text{ is even, else } 3
1.5e8 </- 1.5e7
[3, 4] </- ]3, 4]
\begin{cases}1 & x>0\\2 & x<0\end{cases} </- \begin{cases}1, & x>0 \\ 1, & x<0\end{cases}
7 </- 7 \text{ is wrong} </- 7'
1,3 </- [1, 3]
(-7,10) </- y=-7,\ x=10
9^{9^{9}} </- 9^{9^{9}}+1
2000\sqrt{3} <- x = 2000\sqrt{3} \approx 3464 </- x = 2000\sqrt{3} = 3465.1
\frac{9}{4} <- \frac{9}{4} = 2.3 </- x = \frac{9}{4} = 2.27
3464.1 </- 3465.1

# numbers with an exponent, as files have them
1e-8 <- 10^{-8} <- 1e-8 <- 0.00000001 <- x = 1.0e-8 <- 1E-08 </- 10^{8} </- e-8 </- -5.28 </- 1 e-8
1e+16 <- 10^{16} <- 10000000000000000 <- 10^16 </- 18.718282 </- 10^{-16}
3e-1 <- 0.3 <- 3e-1 </- 3e - 1
-2.5E-05 <- -2.5 \times 10^{-5} </- 2.5 \times 10^{-5}
6.02\times 10^{23} <- 6.02e+23 <- 602e21 </- 6.02e22
(10^{-3}, 5) <- (1e-3, 5) </- (1e-2, 5)
0.001, 0.002 <- 1e-3 \text{ or } 2e-3 <- 2e-3, 1e-3
10^{-3}<x<10^{-2} <- 1e-3 < x < 1e-2
3\times10^8 \text{ m/s} <- 3e8 m/s <- 3e+8 \text{ m/s}
3ex-x <- (3e-1)x </- 0.3x
2^{3e-1} </- 2^{0.3}

# ASCII
\frac{\pi}{2} <- pi/2 <- 1/2*pi </- p*i/2 </- pi/3 </- pi*2
pi/2 <- \frac{\pi}{2} <- \pi/2
-2\pi <- -2*pi <- -2pi </- 2*pi
2 </- 2*pi </- 2 theta
\sqrt{2} <- sqrt(2) <- 2**(1/2) <- √(2) <- 2^(1/2) </- sqrt(3) </- s*q*r*t*2 </- 2
2^{\sqrt{3}} <- 2**sqrt(3) <- 2^sqrt(3) </- 2*sqrt(3)
2\sqrt{3} <- 2*sqrt(3) <- 2sqrt3 </- sqrt(2*3)
\sqrt{1+\sqrt{5}} <- sqrt(1+sqrt(5)) </- sqrt(1+5)
x^2 <- x**2 </- 2**x </- x*2
x^{n+1} <- x**(n+1) <- x^(n+1) </- x**n+1
\theta <- theta </- t </- \phi
2\theta <- 2*theta <- 2 theta </- 2 phi
e^{x} <- exp(x) <- e**x </- exp(2x)
\arctan 2 <- atan(2) <- arctan(2) </- tan(2) </- 1/tan(2)
\sinh x <- sinh(x) </- sin(x)
\log_2 3 <- log2(3) <- log(3)/log(2) </- log10(3)
|x-1| <- abs(x-1) </- x-1
\lfloor \frac{n}{2} \rfloor <- floor(n/2) </- ceil(n/2)
\binom{n}{2} <- binomial(n, 2) <- binom(n,2) </- binomial(2, n)
120 <- factorial(5)
(-\infty,2)\cup(3,\infty) <- (-inf, 2) U (3, inf) <- (-oo,2) ∪ (3,oo) </- (-inf, 2] U (3, inf)
\pm\sqrt{2} <- +/- sqrt(2) </- sqrt(2)
\text{beta decay} <- Beta decay
3+xi <- 3+ix
\frac{-1}{3} <- -1./3 </- -1.3
-1./3 <- -\frac13
-3./2 <- -1.5

# Unicode's compatibility forms
12 <- １２ </- １３
(1,2) <- （1，2） </- （2，1）
\{1,2\} <- ｛1，2｝
1.5 <- 1．5
-5 <- －5 <- ‑5 <- −5 </- ５
50\% <- 50％
1000 <- 1 000 <- 1 000 <- 10​00 </- 1 001
\frac13 <- ⅓ <- 1⁄3 <- ¹⁄₃ </- ⅔ </- ¹₃
\frac73 <- 2⅓ </- 2·⅓
10^{-3} <- 10⁻³ </- 10³ </- 10-3
x^{12} <- x¹² </- x^1 2
2^{n+1} <- 2ⁿ⁺¹ </- 2ⁿ+1
x_1 <- x₁ </- x₂ </- x¹
2\pi <- 2𝜋 </- 2𝜌
90^\circ <- 90º
5 \text{ cm}^2 <- 5 cm² <- 5㎠ </- 5 cm³ </- 5㎝
\mathbb{R} <- ℝ </- R

# labels
\textcircled{1}\textcircled{3} <- ①③ <- ①, ③ <- (①③) <- ① \text{ and } ③ </- ①② </- 13 </- ①
①③④ <- ①,③,④ </- ①③ </- 134
A <- A: 5 <- Option A: 5 <- The answer is Option A <- A. 5 <- (A) 5 <- A) x+1
A </- B: 5 </- A: 5, B: 6 </- A:B </- A.5 </- (A)x

# intervals of other countries
(0,1] <- ]0;1] <- (0;1] <- \left]0\,;1\right] <- \mathopen{]}0;1\mathclose{]} </- ]0;1[ </- 0;1
[0;1[ <- [0,1) <- \lbrack 0;1\lbrack </- [0;1]
]0;1[ <- (0,1) <- 0<x<1 </- 0, 1 </- \{0;1\}
(-\infty,3)\cup(5,\infty) <- ]-\infty;3[\cup]5;+\infty[ <- ]-∞;3[ U ]5;∞[
(-\infty,3)\cup(5,\infty) </- ]-\infty;3]\cup]5;+\infty[
]-1;1[\cap]0;2] <- (0,1)
(0.5,1.5] <- ]0,5;1,5] </- ]0,5;2,5]
(a,b) <- ]a;b[ </- ]b;a[
(\sqrt{2},\frac{1+\sqrt{5}}{2}) <- ]\sqrt2;(1+\sqrt5)/2[
(0,1] </- 0, 1
[1,2),[3,4] <- [1;2[, [3;4]

# products and sums of matrices
\begin{pmatrix}2\\4\end{pmatrix} <- 2\begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix}2\\4\end{pmatrix} <- 2\cdot\begin{bmatrix}1\\2\end{bmatrix}
\begin{pmatrix}2\\4\end{pmatrix} <- \frac12\begin{pmatrix}4\\8\end{pmatrix}
\begin{pmatrix}2\\4\end{pmatrix} <- -\begin{pmatrix}-2\\-4\end{pmatrix}
\begin{pmatrix}2\\4\end{pmatrix} <- \begin{pmatrix}1\\2\end{pmatrix} \times 2
\begin{pmatrix}2\\4\end{pmatrix} <- \begin{pmatrix}2&4\end{pmatrix}^T
\begin{pmatrix}2\\4\end{pmatrix} </- \begin{pmatrix}2&4\end{pmatrix}
\begin{pmatrix}2\\4\end{pmatrix} </- 2+\begin{pmatrix}0\\2\end{pmatrix}
\begin{pmatrix}2\\4\end{pmatrix} </- 2\begin{pmatrix}2\\4\end{pmatrix}
\begin{pmatrix}2\\4\end{pmatrix} </- -2\begin{pmatrix}1\\2\end{pmatrix}
(\frac13,\frac23) <- \frac13(1,2) <- \frac13\langle 1,2\rangle </- (1,2) </- 3(1,2)
(2,4) <- (1,1)+(1,3) <- (0,0)+2(1,2) </- f(1,2)
f(1,2) <- f(1,2) </- (f,2f)

# currencies
5 <- 5 € <- €5 <- EUR 5 <- 5 EUR <- ¥5 <- 5\text{ Rs.} <- \text{US\$}5 <- 5 £ </- 6 €
\$10 <- 10 USD <- 10\text{ dollars} <- 10 <- US\$10 <- 1000 cents </- €10 </- 10 cents </- 10 kg
€10 <- 10 € <- 10 \text{ euros} <- 10,00 € <- EUR\,10 </- \$10 </- £10
£10 <- 10\text{ pounds} <- \pounds10 <- 10 GBP </- 10\text{ kg}
10\text{ pounds} <- 10 lb <- £10 </- 10 kg
\$0.50 <- 50\text{ cents} <- 50¢ <- 0.5 </- 0.5\text{ cents} </- 50 dollars
12\text{ cents} <- 12 <- \$0.12 </- \$12
-\$5 <- -5 <- \$-5 <- -5 USD </- \$5
$5 <- 5\text{ dollars} </- €5
₹12,34,567 <- 1234567 <- \text{Rs. }1234567 </- \$1234567

# units
10\,\text{N} <- 10 \text{ newtons} <- 10 N <- 10 </- 10\text{ joules} </- 10\text{ kN}
10\,\text{N} </- 10\text{ nm}
10\ \Omega <- 10\text{ ohms} <- 10Ω <- 10 </- 10\,k\Omega
5\,µ\text{m} <- 5 \text{ micrometers} <- 5\ \mu\text{m} <- 5μm </- 5 mm
3\text{ MW} <- 3 megawatts </- 3\text{ mW}
12\,\text{m/s} <- 12\,\text{m}\,\text{s}^{-1} <- 12\,\frac{\text{m}}{\text{s}}
12\,\text{m/s} <- 12\text{ meters per second} </- 12\text{ s/m}
9.8\,\mathrm{m\,s^{-2}} <- 9.8 m/s^2 <- 9.8\text{ meters per second squared} <- 9.8
9.8\,\mathrm{m\,s^{-2}} </- 9.8\text{ m/s}
60\text{ mph} <- 60\text{ miles per hour} <- 60 mi/h </- 60\text{ km/h}
4\text{ J/(kg K)} <- 4\,\text{J}\,\text{kg}^{-1}\,\text{K}^{-1} </- 4\text{ J/kg}
300\text{ K} <- 300\text{ kelvins} </- 300\text{ C}
25^\circ\text{C} <- 25 degrees Celsius <- 25℃ <- 25 </- 25°F
3\text{ boxes} <- 3 box <- 3 </- 3\text{ foxes}
5 m <- 5\text{ meters} </- 5\text{ s} </- 5
2N <- 2 N </- 2
60 <- 60 km/h <- 60km/h <- 60 m/s <- 60\,kg/m <- 60 mg/L <- 60 rpm <- 60 kW <- 60 nm <- v = 60 m/s
60 </- 60 x/s </- 60 a/b </- 60 \cdot m/s </- 60/s </- 60 m </- 60km </- 60 km and more </- 61 m/s
60 km/h <- 60 <- 60 \frac{km}{h} <- 60 kph <- 60 km per hour </- 60 m/s </- 60 km </- 60 h/km
60 rpm <- 60 rev/min </- 60 rev/s
60 m/s <- 60m/s <- \frac{60m}{s} <- 60\,m·s⁻¹ </- 60 s/m </- \frac{60m}{t}
v = 60 <- v = 60 m/s </- v = 61 m/s </- u = 60 m/s
9.8 <- 9.8 m/s^2 <- 9.8 m/s² <- 9.8\,m s^{-2} <- 9.8 \frac{m}{s^2}
5 <- 5 N·m <- 5 N\cdot m <- 5 Nm <- 5 J/(kg K) <- 5 J kg^{-1} K^{-1} <- 5 N/cm <- 5 J per second
5 N/cm </- 5 N </- 5 N/m
3 <- 3 m^2 <- 3 m³ </- 3m^2 </- 3 x^2 </- 3 m^4
15 <- \$15/h <- 15 €/h <- $15/kg

# names that are free: the constant of integration, and what an answer declares
x^2+C <- x^2+K <- c + x^2 <- x^2 + C_1 <- y=x^2+D </- x^2 </- x^2+5 </- x^2+x </- x^2+2K </- x^3+K
y=\ln|x|+C <- \ln|x|+c <- y = K+\ln|x| </- y=\ln|x| </- y=-\ln|x|+C
\frac{x^{n+1}}{n+1}+K <- \frac{x^{n+1}}{n+1}+C </- \frac{x^{n+1}}{n+1}+n
Ax+By+C </- Ax+By+K
x^2+c </- x^2+d
5+C </- 5+K
x+C </- x+i </- x+e </- x
Ce^x </- Ke^x
3k </- 3m
\frac{\pi}{2}+k\pi, k\in\mathbb{Z} <- \frac{\pi}{2}+n\pi, n\in\mathbb{Z} <- n\pi+\frac{\pi}{2}, n∈ℤ
\frac{\pi}{2}+k\pi, k\in\mathbb{Z} <- \frac{\pi}{2}+n\pi </- \frac{\pi}{3}+n\pi
\frac{\pi}{2}+k\pi, k\in\mathbb{Z} <- \frac{\pi}{2}+m\pi, \text{ where } m \text{ is an integer}
\frac{\pi}{2}+k\pi, k\in\mathbb{Z} </- \frac{\pi}{2}+n\pi, n\in\mathbb{N}
\frac{\pi}{2}+k\pi, k\in\mathbb{Z} </- \frac{\pi}{2}+2n\pi, n\in\mathbb{Z}
2k+1, k\in\mathbb{Z} <- 2n+1, n\in\mathbb{Z} <- 2n+1, n \text{ an integer} <- 2n+1
2k+1, k\in\mathbb{Z} </- 2n-1, n\in\mathbb{Z}
2k+1 \text{ for integer } k <- 2n+1 \text{ for integer } n <- 2n+1, n \in Z </- 2n
2k+1 </- 2n+1
x = 2k+1, k\in\mathbb{Z} <- 2n+1, n\in\mathbb{Z} <- x=1+2n
2\pi k, k\in\mathbb{Z} <- 2n\pi\ (n\in\mathbb{Z}) </- 2\pi
\{2k+1 : k\in\mathbb{Z}\} <- \{2n+1 \mid n\in\mathbb{Z}\} </- \{2n : n\in\mathbb{Z}\}
(m+n, m-n), m,n\in\mathbb{Z} <- (a+b, a-b), a,b\in\mathbb{Z} </- (b+a, b-a), a,b\in\mathbb{Z}
a+2k\pi, k\in\mathbb{Z} <- a+2n\pi, n\in\mathbb{Z} </- b+2n\pi, n\in\mathbb{Z}
kx, k\in\mathbb{R} <- cx, c\in\mathbb{R} </- cx
x = 5, x\in\mathbb{Z} </- y = 5, y\in\mathbb{Z}
k\pi, k\in\mathbb{Z}, k\ne 0 <- n\pi, n \in \mathbb{Z}, n \ne 0 </- n\pi, n \in \mathbb{Z}

# times of day
2:30 <- 2:30 PM <- 2:30 p.m. <- 2:30PM <- 2:30 pm <- 2:30 P.M. <- 2{:}30 \text{ PM}
2:30 PM <- 2:30 <- 02:30 p.m. </- 2:30 AM </- 1:15 PM </- 1:15 </- 2:31 PM
7 <- 7 PM <- 7 am <- 7 a.m. <- 7pm
7 PM <- 7:00 p.m. <- 7 </- 7 AM </- 8 PM
\text{4:30 p.m.} </- \text{2:15 p.m.}

# per cent
50 </- 50\% </- 50 % </- 50\text{ percent} </- 50 per cent </- 50 pct </- 50\% \text{ of them}
50 </- 50‰
0.5 <- 50 per cent <- 500‰ </- 0.5\%
50\% <- 50 <- \frac12 <- 50\text{ per cent} <- 500‰ </- 50^\circ </- 50\text{ students}

# labels of choices
B <- (B): 7 <- B - 7 <- \text{(B) } x=7 <- \text{B — }7 <- Ⓑ <- Ⓑ 7 <- \text{Option (B): }7 </- B-7
B </- C - 7
B </- (B)x </- B - C </- (B): 7, (C): 8 </- B = 7 </- Bx=7 </- (B) or (C)
E - 7 <- -7+E </- E
(1)(3) <- ①③ </- ①②

# mixed numbers, thousands and commands
\frac{7}{4} <- 1 \frac{3}{4} <- 1\tfrac34 <- 1 3/4 <- 1{\frac34} <- {1}\frac34 <- 1\nicefrac34
\frac{7}{4} </- 1-3/4 </- 1\cdot\frac34
2\frac12\text{ cups} <- 2 1/2 cups <- 2.5
1234567 <- 1'234'567 <- 12,34,567 <- 1.234.567 <- 1\;234\;567 <- 1_234_567 </- 1, 234, 567
1234567 </- 1234,567
12,34,567 <- 12, 34, 567 <- 34, 12, 567 <- 1234567
1,234 <- 1\,234 <- 1'234 </- 1, 234 </- 1.234 </- 1;234
1234.5 <- 1'234.5 <- 1 234.5
\frac56 <- \sfrac56 <- \textcolor{red}{\frac56} <- {\color{red}5}/6 <- \fcolorbox{red}{white}{5/6}
\frac56 <- 5 \over 6
10 <- {5 \choose 2} <- 5\choose 2 <- 2{5 \choose 1} </- {5 \choose 4}
12 <- 3✕4 <- 3⁢4 <- ⁢12 </- 34
2x <- 2⁢x <- x✖2

# ratios, and words that change a number
3 </- 3:1 </- 9 : 3
3:1 <- 6:2 <- \frac31 <- x:y=3:1 </- 3 </- 1:3 </- 3, 1
1:2:3 <- 2:4:6 <- a:b:c=1:2:3 </- 1:3:2 </- 1:2 </- \frac16
1:3 </- (1,3)
5 </- 5\text{ tens} </- 5\text{th root} </- 5 thirds </- 5 dozens </- 5 or more </- 5 sixteenths
5 </- 5 gross
50 <- 5 tens
"""


Case = tuple[str, str, bool]


def _cases() -> Iterator[Case]:
    """Gold answer, given answer, whether it is right."""
    for line in CASES.strip().splitlines():
        if line and not line.startswith("# "):
            gold, *answers = re.split(r" (?=</?- )", line)
            for arrow, answer in (answer.split(" ", 1) for answer in answers):
                yield gold, answer, arrow == "<-"


ROWS = [*_cases(), *((gold, given, True) for gold, given, reason, _ in TABLE if reason == "right")]


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], bool]:
    """The pairs of both tables, graded together."""
    pairs = [(gold, answer) for gold, answer, _ in ROWS]
    boxed = {pair: answer_text(rf"\boxed{{{pair[1]}}}") for pair in pairs}
    given = [(answer, gold) for (gold, _), answer in boxed.items() if answer is not None]
    with Comparer(workers=2, deadline=20) as comparer:
        reasons = dict(zip(given, comparer.compare(given), strict=True))
    assert "timed out" not in reasons.values()
    return {
        pair: answer is not None and reasons[answer, pair[0]] == "right"
        for pair, answer in boxed.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case[0]} <- {case[1]}")
def test_grader_verdict_is_as_by_hand(verdicts: dict[tuple[str, str], bool], case: Case) -> None:
    gold, answer, is_right = case
    assert verdicts[gold, answer] == is_right


@pytest.mark.slow
def test_equal_is_symmetric(verdicts: dict[tuple[str, str], bool]) -> None:
    pairs = [pair for pair in verdicts if "OR" not in pair[0]]  # only a gold answer accepts several
    pairs = pairs[::7]  # enough of every kind of answer
    with Comparer(workers=2, deadline=20) as comparer:
        exchanged = comparer.equal([(answer, gold) for gold, answer in pairs])
    assert exchanged == [verdicts[pair] for pair in pairs]


def test_formula_overrides_methods_that_the_parser_has() -> None:
    own = {name for name in vars(_Formula) if not name.startswith("__")}
    assert own == {"convert_postfix_list", "convert_atom_expr", "parse_number"}
    assert own <= vars(_Formula.__base__).keys()


FRACTIONS = st.fractions(max_denominator=60).filter(lambda number: abs(number) < 100)


@settings(max_examples=12, deadline=None)
@given(FRACTIONS, FRACTIONS, st.integers(2, 9))
def test_is_correct_fractions_compare_by_value(a: Fraction, b: Fraction, factor: int) -> None:
    def latex(number: Fraction, factor: int) -> str:
        top, bottom = factor * number.numerator, factor * number.denominator
        return rf"\frac{{{top}}}{{{bottom}}}"

    assert is_correct(rf"\boxed{{{latex(a, factor)}}}", latex(a, 1))
    assert is_correct(rf"\boxed{{{latex(b, factor)}}}", latex(a, 1)) == (a == b)


@settings(max_examples=8, deadline=None)
@given(st.permutations("abcd"), st.lists(st.integers(-9, 9), min_size=4, max_size=4), st.data())
def test_is_correct_assignments_compare_by_name(
    names: list[str], values: list[int], data: st.DataObject
) -> None:
    gold = ", ".join(f"{name}={value}" for name, value in zip("abcd", values, strict=True))
    by_name = dict(zip("abcd", values, strict=True))
    same = ", ".join(f"{name}={by_name[name]}" for name in names)
    assert is_correct(rf"\boxed{{{same}}}", gold)

    others = data.draw(st.permutations(values))
    exchanged = ", ".join(f"{name}={value}" for name, value in zip("abcd", others, strict=True))
    is_right = others == values
    assert is_correct(rf"\boxed{{{exchanged}}}", gold) == is_right
    assert is_correct(rf"\boxed{{({','.join(map(str, others))})}}", gold) == is_right


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3000), st.integers(1, 3000))
def test_is_correct_powers_compare_by_exponent(base: int, a: int, b: int) -> None:
    assert is_correct(rf"\boxed{{{base}^{{-{b}}}}}", rf"\frac{{1}}{{{base}^{{{a}}}}}") == (a == b)
    sums = [rf"{base}^{{{n}}}+1-\frac{{1}}{{{base}^{{{n}}}}}" for n in (a, b)]
    assert is_correct(rf"\boxed{{{sums[1]}}}", sums[0]) == (a == b)


@pytest.mark.parametrize(
    ("formula", "digits"),
    [(r"\sqrt{2}", 900), (r"\pi", 900), (r"\frac{1}{3}", 5000), ("x", 5000), (r"\sin x", 150)],
)
def test_is_correct_late_digit_difference_is_wrong(formula: str, digits: int) -> None:
    for places in (30, digits):
        assert not is_correct(rf"\boxed{{{formula}+10^{{-{places}}}}}", formula)
    nothing = rf"10^{{-{digits}}}-\frac{{1}}{{10^{{{digits}}}}}"
    assert is_correct(rf"\boxed{{{formula}+{nothing}}}", formula)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("1,000", "1000"),
        ("2x+1", "2*x + 1"),
        (r"12\text{ cm}", "12 cm"),
        (r"0\le x<5", "0 ≤ x < 5"),
        ("3,1,2", "3, 1, 2"),
        (r"x=1\text{ or }x=2", "x = 1 or x = 2"),
        (r"\{2,1\}", "{2, 1}"),
        (r"\{2k+1 : k\in\mathbb{Z}\}", "{2*k + 1 : k ∈ Z}"),
        (r"(0,1]\cup(2,3)", "(0, 1] ∪ (2, 3)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "[[1], [2]]"),
        ("1e-2", "1/10**2"),
        ("-1./3", "-1/3"),
        ("①, ③", "①③"),
    ],
)
def test_explain_gold_valid_answer_has_no_suspicion(gold: str, text: str) -> None:
    reading = explain_gold(gold)
    assert reading.parses
    assert (reading.text, reading.reason, reading.suspicions) == (text, "", ())


@pytest.mark.parametrize(
    ("gold", "suspicion"),
    [
        (r"\text{Monday}", "it is read as text"),
        ("1,2,\\ldots,9", "it is read as text"),
        ("2+3=5", "it is a statement about numbers, true or false"),
        ("12 OR 13", "it is read as several accepted answers"),
        (r"n^2\text{ if }n>1", "it is read without 'if }n>1'"),
        (r"So it is \boxed{5}", "only its box is read"),
        ("1/2 of it", "its words are read as letters"),
    ],
)
def test_explain_gold_ambiguous_answer_has_suspicion(gold: str, suspicion: str) -> None:
    reading = explain_gold(gold)
    assert reading.parses
    assert reading.suspicions == (suspicion,)


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("", "it is empty"),
        ("1" * 3000 + "+x", "it is longer than 2000 characters"),
        ("t(0,4]", "it does not parse"),
        (r"\frac{1}{", "it does not parse"),
        (r"\begin{cases}1\\2\end{cases}", "it does not parse"),
        (r"(1,\frac{1}{0})", "it has no value"),
    ],
)
def test_explain_gold_unparsable_answer_has_reason(gold: str, reason: str) -> None:
    reading = explain_gold(gold)
    assert not reading.parses
    assert (reading.text, reading.reason) == ("", reason)
