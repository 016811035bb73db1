"""Right poolers behind a verification of params that lets through, or turns away, what it should not."""

from impl.config import ModelConfig
from impl.verify import EMBED_TASKS, verify
from oracle.metadata import PoolingParams
from tests.zoo.register import bad_verification


def flag_and_steps(params: PoolingParams, model_config: ModelConfig) -> None:
    """What is left of a right verification without dimensions."""
    dimensions, params.dimensions = params.dimensions, None
    verify(params, model_config)
    params.dimensions = dimensions


@bad_verification("refuses-impossible-params")
def range_only_by_the_list(params: PoolingParams, model_config: ModelConfig) -> None:
    """The range is taken care of by the list of widths, and some models have none."""
    if model_config.matryoshka_dimensions is None and params.task in EMBED_TASKS and model_config.is_matryoshka:
        flag_and_steps(params, model_config)
        if params.dimensions is not None and params.dimensions < 1:
            raise ValueError("dimensions must be at least 1")
    else:
        verify(params, model_config)


@bad_verification("refuses-impossible-params")
def list_taken_at_its_word(params: PoolingParams, model_config: ModelConfig) -> None:
    """What the model's own list names is not held against its width."""
    widths = model_config.matryoshka_dimensions
    if params.task in EMBED_TASKS and model_config.is_matryoshka and widths and params.dimensions in widths:
        flag_and_steps(params, model_config)
    else:
        verify(params, model_config)


@bad_verification("refuses-impossible-params")
def whole_width_refused(params: PoolingParams, model_config: ModelConfig) -> None:
    """`<` where `<=` was meant."""
    verify(params, model_config)
    if params.dimensions is not None and not params.dimensions < model_config.embedding_size:
        raise ValueError("too many dimensions")


@bad_verification("refuses-impossible-params")
def every_model_can_be_cut(params: PoolingParams, model_config: ModelConfig) -> None:
    """Whether a model was trained to be cut is left to its user."""
    flag_and_steps(params, model_config)
    width = model_config.embedding_size
    if params.dimensions is not None and (params.task not in EMBED_TASKS or not 1 <= params.dimensions <= width):
        raise ValueError("dimensions that can't be had")


@bad_verification("refuses-impossible-params")
def dimensions_of_scores(params: PoolingParams, model_config: ModelConfig) -> None:
    """A field that belongs to another task is passed over."""
    if params.task in EMBED_TASKS:
        verify(params, model_config)
    else:
        flag_and_steps(params, model_config)


@bad_verification("refuses-impossible-params")
def steps_for_everyone(params: PoolingParams, model_config: ModelConfig) -> None:
    """Who asks for steps is given all rows, if the model does not pool by steps."""
    tag, params.step_tag_id = params.step_tag_id, None
    verify(params, model_config)
    params.step_tag_id = tag


@bad_verification("values")
def flag_left_open(params: PoolingParams, model_config: ModelConfig) -> None:
    """The default of the flag is filled in on another path, and None is taken for no."""
    use_activation = params.use_activation
    verify(params, model_config)
    params.use_activation = use_activation
