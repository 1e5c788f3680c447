"""The loss beside its products and peers: a contender that dies costs its own figures."""

import torch

from loss import Size, make, products_of


def test_products_of_sum_in_another_dtype_counts_its_multiplications() -> None:
    x = make(Size("one", 8, 4, 1, vocabulary=16), 1)
    states, head = (part.to("meta", torch.bfloat16) for part in (x.student.detach(), x.head))
    logits = torch.empty(4, 16, device="meta")

    def run() -> None:
        torch.addmm(logits, states, head.T, out_dtype=torch.float32, out=logits)

    assert products_of(run, x) == 1
