"""A metric of completions: their words. It gives no reward, beside a grader that does."""


def words(completion, row):  # type: ignore[no-untyped-def]
    return {"reward": None, "metrics": {"words": len(completion.split())}}
