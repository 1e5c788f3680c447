r"""Verdicts on answers in forms that occur in data sets and completions: gold | given | why."""

from strictgrade.comparer import accepted, answer_text
from strictgrade.equality import compare_symbolic, compare_text
from strictgrade.inputs import Gold


def is_correct(completion: str, answer: Gold) -> bool:
    """The verdict on a completion, in this process and without a deadline."""
    given = answer_text(completion)
    return given is not None and any(
        (compare_text(given, gold) or compare_symbolic(given, gold)) == "right"
        for gold in accepted(answer)
    )


RIGHT = r"""
1/2              | \frac{1}{2}                      | a fraction in ASCII
\frac{1}{2}      | 0.5                              | a decimal
\frac{1}{2}      | .5                               | without its zero
\frac{1}{2}      | 0.50                             | with one too many
\frac{1}{2}      | \dfrac12                         | without braces
\frac{1}{2}      | \tfrac{2}{4}                     | not reduced
-\frac{1}{2}     | \frac{-1}{2}                     | the sign inside
\frac{1}{3}      | 0.333333                         | six places
\frac{1}{3}      | 0.\overline{3}                   | a period
\frac{1}{6}      | 0.1\overline{6}                  | a period after a digit
12\frac{3}{5}    | 12.6                             | a mixed number
12\frac{3}{5}    | \frac{63}{5}                     | an improper fraction
1000             | 1{,}000                          | separators of thousands
1000             | 1\,000                           | thin space
11,\! 111,\! 100 | 11111100                         | as MATH writes it
1234.5           | 1,234.5                          | separator and decimals
7                | 007                              | leading zeros
5                | +5                               | a plus sign
5                | \text{5}                         | a number as text
5                | x = 5                            | a name that only the given answer has
x=5              | 5                                | a name that only the gold answer has
5                | \text{Area} = 5 \text{ cm}^2     | a name in words, and a unit
5                | x_1 = 5                          | a name with an index
5                | 3 + 2 = 5                        | a sum that says its result
B                | \text{B}                         | a choice
\text{B}         | (B)                              | a choice in brackets
B                | \textbf{(B)}                     | a choice in bold
A, C             | A \text{ and } C                 | choices
\text{Friday}    | friday                           | case of words
\text{no solution} | No solution.                   | a sentence
\text{even}      | \text{ even }                    | blanks in \text
(3, \infty)      | \left(3,\infty\right)            | sizes of brackets
(3, \infty)      | x > 3                            | an inequality for an interval
x \ge 3          | [3, ∞)                           | an interval for an inequality, in Unicode
[-2,7]           | -2 \le x \le 7                   | a double inequality
[-2,7]           | x \in [-2,7]                     | membership
3 < x            | x > 3                            | turned round
(-\infty,2)\cup(3,\infty) | (3,\infty)\cup(-\infty,2) | a union in another order
\mathbb{R}       | (-\infty, \infty)                | the whole line
\{2, 3\}         | \{3, 2\}                         | a set in another order
2,3              | \{3, 2\}                         | a list for a set
$69$,$84$        | 84, 69                           | a list with several dollar signs
1,2              | x=1 \text{ or } x=2              | solutions
\pm 2            | 2, -2                            | plus-minus
1\pm\sqrt{5}     | 1+\sqrt5, 1-\sqrt5               | plus-minus in a sum
\emptyset        | \{\}                             | nothing
(1,2)            | \langle 1, 2 \rangle             | a vector
(1,8,19), (2,7,13) | (2,7,13), (1,8,19)             | tuples in another order
\begin{pmatrix}1\\2\end{pmatrix} | \begin{bmatrix} 1 \\ 2 \end{bmatrix} | brackets of a matrix
100\text{ square units} | 100                       | a unit that only the gold answer has
100\text{ square units} | 100 \text{ units}^2       | a squared unit
5                | 5 \text{ cm}                     | a unit that only the given answer has
5                | 5 cm                             | the same as plain text
5 \text{ cm}     | 5\,\mathrm{cm}                   | a unit in roman type
5 \text{ cm}     | 5 \text{ centimeters}            | a unit in full
5 \text{ sq. cm} | 5 \text{ cm}^2                   | sq.
5 \text{ m/s}    | 5 \text{ meters per second}      | a quotient of units
2.5\pi           | \frac{5\pi}{2} \text{ inches}    | a unit after a formula
30000 \text{ m}  | 3 \cdot 10^4                     | a power of ten
48^\circ         | 48                               | degrees
48^\circ         | 48 \text{ degrees}               | degrees in words
48               | 48^{\circ}                       | degrees that only the given answer has
(45^\circ,60^\circ) | (45,60)                       | degrees inside
198\%            | 198                              | per cent, forgiven
198\%            | 1.98                             | per cent, computed
\frac{1}{8}      | 12.5\%                           | per cent of a fraction
200\%            | 2                                | per cent of an integer
\$6              | 6                                | a currency
\$6              | 6.00 \text{ dollars}             | a currency in words
-5               | -\$5                             | a debt
\text{4:30 p.m.} | 4:30 \text{ p.m.}                | a time of day
\text{4:30 p.m.} | 4:30                             | without its half of the day
\text{4:30 p.m.} | 4:30 \text{ pm}                  | without full stops
52_8             | 52                               | a base that only the gold answer has
52_8             | 52_{8}                           | braces of an index
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt3}               | a rational denominator
(a+b)^2          | a^2+2ab+b^2                      | expanded
1024             | 2^{10}                           | a power
3628800          | 10!                              | a factorial
10               | \binom{5}{2}                     | a binomial
\frac{n(n+1)}{2} | \sum_{i=1}^{n} i                 | a sum, whose i is no number
2i               | (1+i)^2                          | the i that is a number
6-5i             | -5 i + 6                         | a complex number
-1               | e^{i\pi}                         | Euler
f(x)=x^2         | x^2                              | a function
y=2x+3           | y - 2x = 3                       | an equation
\sqrt{2}         | √2                               | Unicode
x^2+1            | x²+1                             | a Unicode power
90^{\circ},60^{\circ} | 60,90                       | angles
5                | $5$.                             | dollar signs and a full stop
So the answer is $\boxed{5}$. | 5                   | a boxed gold answer
\begin{cases}1\\2\end{cases} | \begin{cases} 1 \\ 2\end{cases} | does not parse, but says the same
1000000          | 1 000 000                        | blanks between thousands
1000             | 1\ 000                           | the same with a backslash
107,109          | 107, 109                         | two numbers, or thousands: the same text
2 \text{ million} | 2000000                         | a number in words
\$2.5 \text{ million} | 2,500,000 \text{ dollars}  | the same of dollars
0.\dot{3}        | \frac{1}{3}                      | a period with a dot
\frac34          | ¾                                | Unicode
\frac{1}{2}      | \cos 60^\circ                    | degrees within a function
\tan 15^\circ    | 2-\sqrt3                         | the same for a gold answer
2\sin 20^\circ\cos 40^\circ | 2\sin\frac{\pi}{9}\cos\frac{2\pi}{9} | degrees, radians in functions
30^\circ         | \frac{\pi}{6}                    | degrees and radians
0                | \sin \pi                         | zero that is not seen at once
\lg 2            | \log_{10} 2                      | a name of the logarithm
\ln 2            | \log_e 2                         | another one
\frac{3\pm\sqrt5}{2} | \frac{3+\sqrt5}{2}, \frac{3-\sqrt5}{2} | plus-minus in a fraction
(1,0),(-1,0)     | (\pm1,0)                         | plus-minus in a pair
\{(1,2),(2,1)\}  | (2,1),(1,2)                      | pairs, and the set of them
\{(1,2)\}        | (1,2)                            | a pair, and the set of it
(1,1),(2,3)      | (m,n)=(1,1), (m,n)=(2,3)         | pairs with names
(-\infty,1]\cup[2,\infty) | x \le 1 \text{ or } x \ge 2 | two inequalities for a union
x<-1 \text{ or } 1<x<2 | (-\infty,-1)\cup(1,2)     | the other way round
(-\infty,1)\cup(2,\infty) | (-\infty,1) \text{ or } (2,\infty) | two intervals for their union
B                | \textbf{(B)}\ 12                 | a choice and what it says
60\text{ miles per hour} | 60 \text{ mph}           | a quotient of units in short
\{1,2,\ldots,9\} | \{1, 2, \dots, 9\}              | dots in the same text
"""

WRONG = r"""
5                | -5                               | the sign
5                | 50                               | a digit more
10000            | 1,0000                           | separators in the wrong place
0.333            | 0.333..                          | a sloppy period
\frac{1}{3}      | 0.33                             | rounded too early
\pi              | 3.14                             | rounded too early
0.0000001        | 0.0000002                        | math-verify rounds to six places
4 \times 10^{-20} | 3 \times 10^{-20}               | and takes differences this small for nothing
(1,2)            | (2,1)                            | the order of a pair
(2,3,4)          | (3,2,4)                          | the order of a tuple
(1,2)            | [1,2]                            | open and closed
(1,2]            | [1,2]                            | half open
(1,2)            | \{1,2\}                          | a pair or an interval, and a set
x \ge 3          | x > 3                            | strict
(-\infty,2)\cup(3,\infty) | (-\infty,2]\cup(3,\infty) | one end of a union
2,3              | 2,3,4                            | one too many
1\pm\sqrt5       | 1+\sqrt5                         | half of it
4t               | 4                                | math-verify takes t for a unit
4                | 4t                               | the same
2                | 2km                              | k times m
5 \text{ m}      | 5 \text{ cm}                     | another unit
5 \text{ cm}^2   | 5 \text{ cm}                     | its square
6                | 5 \text{ cm}                     | another number
100\%            | 100^\circ                        | degrees are no per cent
2\%              | 200\%                            | per cent on both sides
\$6              | €6                               | another currency
4:30 \text{ p.m.} | 4:30 \text{ a.m.}               | the other half of the day
10 \text{ p.m.}  | 10 \text{ a.m.}                  | the same without minutes
\text{even}      | \text{odd}                       | words
2 \text{ (even)} | 2 \text{ (odd)}                  | words after a number
\text{seat}      | east                             | an anagram is the same product
\text{B}         | \text{C}                         | another choice
B                | b                                | a variable and another
AB               | ab                               | lengths
\text{June 20}   | 20                               | half a date
52_8             | 52_7                             | another base
x_1              | x_2                              | another index
1                | x^2+y^2=1                        | math-verify takes an equation's right side
x^2+y^2=1        | 1                                | the other way round
2                | x \ne 2                          | the opposite
2i               | 2                                | real
\sqrt{x^2}       | x                                | x may be negative
\cos x           | \sin x                           | another function
f(x)=x^2         | g(x)=x^2                         | another name
x=5              | y=5                              | another unknown
\infty           | -\infty                          | infinities
\frac{2}{0}      | \frac{1}{0}                      | two failures are not equal
\frac{0}{0}      | \frac{1}{0}                      | nor are these
1:6              | 6:1                              | ratios
\overline{ABCD}  | \overline{DCBA}                  | figures
5                | \frac{                           | does not parse
2                | 2 \text{ million}                | a number in words
3                | 3 hundred                        | the same as plain text
5                | 5 \text{ or more}                | more than a number
5                | 5 \text{ and a half}             | the same
5                | 5 \text{ squared}                | an operation in words
5                | 5\text{k}                        | thousands
2                | 2 \text{ hours and 30 minutes}   | another number in the unit
\tan 20^\circ    | \tan 20                          | radians
\frac{\pi}{6}    | 60^\circ                         | degrees
0                | 2^{-100}                         | small is not zero
1,2,3,\ldots     | 1,2,3                            | endless and not
1,2,\ldots,10    | 1,2,10                           | math-verify passes over dots
\frac{3\pm\sqrt5}{2} | \frac{3+\sqrt5}{2}          | half of it
(1,4)            | (1,3) \text{ or } (2,4)          | pairs are no intervals
A                | (A), (C)                         | a choice and two
A                | (A)(C)                           | the same without a comma
\textbf{(B)}\ 12 | C                                | another choice
(1,1),(2,3)      | (m,n)=(1,1), (n,m)=(2,3)         | pairs with other names
5                | \left\{ 5                        | does not close
\{x : x>1\}      | \{x : x>2\}                      | conditions
"""

UNPARSABLE = r"""
t(0,4]           | (0,4]                            | a slip in OlympiadBench
\frac{1}{        | 1                                | cut
\begin{cases}1\\2\end{cases} | 2                    | cases
                 | 5                                | empty
$ $              | 5                                | empty between dollar signs
"""


ROWS: list[tuple[str, str, str, str]] = [
    (gold.strip(), given.strip(), verdict, why.strip())
    for verdict, block in (("right", RIGHT), ("wrong", WRONG), ("unparsable gold", UNPARSABLE))
    for gold, given, why in (line.split("|") for line in block.strip("\n").split("\n"))
]
