"""Models that misbehave: they fail by themselves, say so, and leave their neighbours and predecessors alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.servers.models import gated_source, waiting_source
from tests.support.servers.probe import ROW
from tests.support.servers.process import wait_until
from tfs_lite.core.status import ServingError, StatusCode

QUEUE_LIMIT = 32
"""As the shared server is started."""

GOOD = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {{"y": inputs["x"] + {version}}}
"""

BAD_AT_LOAD = {
    "raises_at_import": "raise ImportError('no such driver')",
    "syntax_error": "def (",
    "exits_at_import": "import sys\nsys.exit(3)",
    "no_model_class": "x = 1",
    "raises_in_init": "class Model:\n    def __init__(self, context):\n        raise ValueError('bad weights')\n"
    "    def predict(self, inputs):\n        return {}",
    "exits_in_init": "import sys\nclass Model:\n    def __init__(self, context):\n        sys.exit(4)\n"
    "    def predict(self, inputs):\n        return {}",
    "interrupts_in_init": "class Model:\n    def __init__(self, context):\n        raise KeyboardInterrupt\n"
    "    def predict(self, inputs):\n        return {}",
    "endless_recursion": "class Model:\n    def __init__(self, context):\n        self.__init__(context)\n"
    "    def predict(self, inputs):\n        return {}",
    "out_of_memory": "class Model:\n    def __init__(self, context):\n        raise MemoryError\n"
    "    def predict(self, inputs):\n        return {}",
}


@pytest.mark.parametrize("source", BAD_AT_LOAD.values(), ids=BAD_AT_LOAD)
def test_model_that_cannot_be_made_fails_visibly_and_the_old_version_serves(served, source, request):
    model = f"code_{request.node.callspec.id}"
    served.publish_code(model, 1, GOOD.format(version=1))
    served.probe.wait_available(model, 1)
    served.publish_code(model, 2, source)
    failed = served.probe.wait_failed(model, 2)
    assert str(served.path) not in failed.status.message
    assert served.probe.ask(model) == 1
    served.publish_code(model, 3, GOOD.format(version=3))
    served.probe.wait_available(model, 3)
    assert served.probe.ask(model) == 3


BAD_ANSWERS = {
    "raises": "raise ValueError('cannot do that')",
    "exits": "import sys; sys.exit(5)",
    "interrupts": "raise KeyboardInterrupt",
    "returns_nothing": "return None",
    "returns_other_names": "return {'z': inputs['x']}",
    "returns_no_tensor": "return {'y': 'text'}",
    "returns_other_dtype": "return {'y': inputs['x'].long()}",
    "returns_other_shape": "return {'y': inputs['x'][:, :2]}",
    "recurses": "return self.predict(inputs)",
    "out_of_memory": "raise MemoryError",
}


FAULTS_OF_THE_MODEL = (StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("body", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_model_that_fails_on_one_request_answers_the_next(served, body, request):
    model = f"code_answer_{request.node.callspec.id}"
    served.publish_code(
        model,
        1,
        f"""
class Model:
    def __init__(self, context):
        self.calls = 0

    def predict(self, inputs):
        if float(inputs["x"][0, 0]) < 0:
            {body}
        return {{"y": inputs["x"] + 1}}
""",
    )
    served.probe.wait_available(model, 1)
    for _ in range(2):
        with pytest.raises(ServingError) as caught:
            served.probe.client.predict(model, {"x": -ROW})
        assert caught.value.code in FAULTS_OF_THE_MODEL
        assert "Traceback" not in str(caught.value)
        assert str(served.path) not in str(caught.value)
        assert served.probe.ask(model) == 1


@pytest.mark.parametrize("body", ["raise RuntimeError('no')", "import sys; sys.exit(6)"], ids=["raises", "exits"])
def test_model_whose_close_fails_is_unloaded_all_the_same(served, body, request):
    model = f"code_close_{request.node.callspec.id}"
    served.publish_code(model, 1, GOOD.format(version=1) + f"\n    def close(self):\n        {body}\n")
    served.probe.wait_available(model, 1)
    assert served.probe.ask(model) == 1
    served.publish(model, 2)
    served.probe.wait_states(model, {2: "AVAILABLE", 1: "END"})
    assert served.probe.ask(model) == 2


def test_model_that_takes_long_to_load_holds_up_no_other_models_swaps(served, model, tmp_path):
    slow = "code_slow_load"
    served.publish_code(slow, 1, GOOD.format(version=1))
    served.probe.wait_available(slow, 1)
    served.publish_code(slow, 2, waiting_source(2, tmp_path))
    wait_until(lambda: (tmp_path / "loading-2").exists(), "version 2 is being loaded")
    for version in (1, 2, 3):
        served.publish(model, version)
        served.probe.wait_available(model, version)
        assert served.probe.ask(model) == version
        assert served.probe.ask(slow) == 1
    assert served.probe.states(slow) == {2: "LOADING", 1: "AVAILABLE"}
    (tmp_path / "open").touch()
    served.probe.wait_states(slow, {2: "AVAILABLE", 1: "END"})


def test_new_model_that_takes_long_to_load_delays_no_other_new_model(served, model, tmp_path):
    slow = "code_slow_newcomer"
    served.publish_code(slow, 1, waiting_source(1, tmp_path))
    wait_until(lambda: (tmp_path / "loading-1").exists(), "the newcomer is being loaded")
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    assert served.probe.ask(model) == 1
    assert served.probe.states(slow) == {1: "LOADING"}
    (tmp_path / "open").touch()
    served.probe.wait_available(slow, 1)


def test_full_queue_refuses_at_once_and_answers_what_it_took(served, tmp_path):
    model, crowd = "code_full_queue", 2 * QUEUE_LIMIT
    served.publish_code(model, 1, gated_source(1, tmp_path))
    served.probe.wait_available(model, 1)
    refused: list[StatusCode] = []

    def ask() -> int:
        try:
            return served.probe.ask(model)
        except ServingError as error:
            refused.append(error.code)
            return 0

    with ThreadPoolExecutor(crowd) as pool:
        answers = [pool.submit(ask) for _ in range(crowd)]
        wait_until(lambda: len(refused) >= crowd - QUEUE_LIMIT - 1, "what does not fit is refused")
        assert set(refused) == {StatusCode.UNAVAILABLE}
        (tmp_path / "open").touch()
        versions = [answer.result(60) for answer in answers]
    assert versions.count(1) == crowd - len(refused)
    assert len(refused) <= crowd - QUEUE_LIMIT
