"""Random tables of settings, as hypothesis draws them."""

from hypothesis import strategies as st

PATHS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=60)
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.fixed_dictionaries({"path": PATHS, "lora_rank": st.integers(1, 512)}),
        "data": st.fixed_dictionaries({"limit": st.none() | st.integers(1, 10**6)}),
        "objective": st.fixed_dictionaries(
            {
                "interpolation_weight": st.floats(0, 1),
                "temperature": st.none() | st.floats(1e-3, 10) | st.integers(1, 9),
            }
        ),
        "teacher": st.fixed_dictionaries(
            {"weights": st.sampled_from(["frozen", "ema", "live"]), "decay": st.floats(0, 0.999)}
        ),
        "train": st.fixed_dictionaries({"seed": st.integers(0, 10**6)}),
        "log": st.fixed_dictionaries(
            {"trackers": st.permutations(["tensorboard", "wandb", "trackio"])}
        ),
    },
)
