"""A metric of tokens: whether the student is sure of one."""

from paint.algorithms.variant import Variant


class Sure(Variant):
    def score(self, setup, rollouts):  # type: ignore[no-untyped-def]
        loss, values = super().score(setup, rollouts)
        return loss, {**values, "sure": (values["student_entropy"] < 0.1).float()}
