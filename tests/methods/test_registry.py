"""Methods by name: those that run, those that only plan, and those that another package brings."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policyquant.errors import PolicyQuantError
from policyquant.methods.base import QuantMethod
from policyquant.methods.registry import BUILT_IN, method_class, method_for, register, runnable
from policyquant.methods.unquantized import Unquantized
from policyquant.policy.methods import METHODS, WEIGHT_KINDS, Choices, MethodSpec
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.policy.spec_check import check_spec
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_built_in_method_is_found_under_the_name_that_policies_use(name: str) -> None:
    found = method_class(name)
    assert issubclass(found, QuantMethod)
    assert found.spec is METHODS[name]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in BUILT_IN])
def test_a_method_that_only_plans_says_which_run(name: str) -> None:
    with pytest.raises(PolicyQuantError, match=f"'{name}' can be planned, but nothing runs it yet; methods that run: "):
        method_for(Scheme(name))


def test_a_name_that_nobody_knows_is_answered_with_the_nearest() -> None:
    with pytest.raises(PolicyQuantError, match="no method is named 'fp9'; did you mean 'fp8'"):
        method_class("fp9")


def test_two_methods_of_one_name_are_refused() -> None:
    class Other:
        spec = METHODS["fp8"]

    method_class("fp8")
    with pytest.raises(PolicyQuantError, match="two methods are named 'fp8'"):
        register(Other)


def test_a_method_under_our_name_is_described_as_we_describe_it() -> None:
    class Other(Unquantized):
        spec = replace(METHODS["int8"], summary="Otherwise.")

    with pytest.raises(PolicyQuantError, match=r"'int8' is described by policyquant, .*`spec = METHODS\['int8'\]`"):
        register(Other)
    assert "int8" not in runnable()


@pytest.mark.parametrize("spec", [spec for name, spec in METHODS.items() if name != "none"], ids=lambda spec: spec.name)
def test_what_we_describe_is_understood(spec: MethodSpec) -> None:
    check_spec(spec, WEIGHT_KINDS)


GROUPS: Any = Quantization("int8", "group", group=64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"name": "My Method"},
            "'My Method' .*: its name is to be of lower-case letters, digits and _, as 'my_method'$",
        ),
        ({"name": ""}, "its name is to be of lower-case letters, digits and _$"),
        ({"kinds": frozenset({"linear", "mlp"})}, "kind 'mlp' is none of linear, moe, head, router, embedding$"),
        ({"kinds": frozenset({"linears"})}, "kind 'linears' is none of .*; did you mean 'linear'"),
        ({"kinds": frozenset({"conv"})}, "kind 'conv' is none of linear, "),
        ({"kinds": "linear"}, "kinds is to be a set of some of linear, moe, .*; found 'linear'"),
        ({"kinds": frozenset()}, "kinds is to be a set"),
        ({"weight": Quantization("int7", "channel")}, "weight dtype 'int7' is none of float32, .*; did you mean 'int"),
        ({"weight": "int8"}, "weight is to be a Quantization or None; found str"),
        ({"weight": replace(GROUPS, granularity="row")}, "weight granularity 'row' is none of tensor, channel, group"),
        ({"weight": replace(GROUPS, granularity="token")}, "weight granularity 'token' is none of"),
        ({"weight": replace(GROUPS, scale_dtype="fp8")}, "weight scale_dtype 'fp8' is none of"),
        ({"weight": replace(GROUPS, scheme="static")}, "weight scheme 'static' is of no weight"),
        ({"weight": replace(GROUPS, group=0)}, "weight group is to be a whole number above 0; found 0"),
        ({"weight": replace(GROUPS, group=None)}, "weight granularity 'group' with group None"),
        ({"weight": replace(GROUPS, block=(8, 8))}, r"weight granularity 'group' with block \(8, 8\)"),
        ({"weight": Quantization("int8", "block", block=8)}, "weight block is to be two whole numbers .*; found 8"),
        ({"weight_choices": Choices(dtype=("int8", "int5"))}, "weight dtype 'int5' is none of"),
        ({"weight_choices": Choices(granularity=("channel", "group"))}, "weight_choices has no group"),
        ({"input": Quantization("int8", "token")}, "input scheme None is none of dynamic, static"),
        (
            {"input": Quantization("int8", "chanel", scheme="dynamic")},
            "input granularity 'chanel' is none of tensor, token",
        ),
        ({"input_choices": Choices(scale=True)}, "input_choices says what may be set, but there is no input"),
    ],
)
def test_a_description_that_is_not_understood_cannot_be_registered(change: dict[str, Any], message: str) -> None:
    class Other(Unquantized):
        spec = replace(METHODS["int8_weight_only"], name="other", weight_choices=Choices())

    Other.spec = replace(Other.spec, **change)
    with pytest.raises(PolicyQuantError, match=message):
        register(Other)
    assert Other.spec.name not in runnable()


def test_a_registered_method_is_known_to_policies_at_once() -> None:
    program = textwrap.dedent("""
        from dataclasses import replace
        from policyquant import load_policy
        from policyquant.methods.registry import method_class, register, runnable
        from policyquant.methods.unquantized import Unquantized
        from policyquant.policy.methods import METHODS

        assert "mine" not in METHODS and "mine" not in runnable()

        @register
        class Mine(Unquantized):
            spec = replace(METHODS["int8_weight_only"], name="mine")

        assert load_policy({"layers": {"*": "mine"}}).rules[0].fields.method == "mine"
        assert METHODS["mine"] is Mine.spec and method_class("mine") is Mine and "mine" in runnable()
        assert "mine" not in list(METHODS), "what is listed is ours"
    """)
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert finished.returncode == 0, finished.stderr


def test_a_method_without_a_reference_cannot_be_registered() -> None:
    class Unfinished(Unquantized):
        spec = replace(METHODS["none"], name="unfinished")
        reference_input = QuantMethod.reference_input

    message = "method 'unfinished' of .*Unfinished cannot be used: it does not define reference_input$"
    with pytest.raises(PolicyQuantError, match=message):
        register(Unfinished)
    assert "unfinished" not in runnable()


PLUGIN = '''"""Method `rounded`: weights rounded to whole steps.

What it does
------------
Rounds.

Numerics
--------
q = round(w / s)
"""

from policyquant.methods.unquantized import Unquantized
from policyquant.policy.methods import MethodSpec
from policyquant.policy.scheme import Quantization


class Rounded(Unquantized):
    """Stands for a method of its own: it is planned, and found by name."""

    spec = MethodSpec(
        "rounded", "Rounds.", "In a test.", frozenset({"linear"}), Quantization("int8", "channel"), shapes="any"
    )
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A package as pip installs it: a module, and metadata with an entry point."""
    (tmp_path / "rounding_methods.py").write_text(PLUGIN)
    write_metadata(tmp_path, "rounding-methods", "rounded = rounding_methods:Rounded")
    return tmp_path


def write_metadata(folder: Path, package: str, point: str) -> None:
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[policyquant.methods]\n{point}\n")


@pytest.fixture
def packaged_plugin(plugin: Path) -> Path:
    """The same inside a package whose `__init__` loads much."""
    package = plugin / "rounding"
    package.mkdir()
    (package / "__init__.py").write_text("import torch")
    (plugin / "rounding_methods.py").rename(package / "methods.py")
    write_metadata(plugin, "rounding-methods", "rounded = rounding.methods:Rounded")
    return plugin


@pytest.fixture
def documented(tmp_path: Path) -> Path:
    """The package that docs/adding-a-method.md writes."""
    (module,) = [block for block in blocks("docs/adding-a-method.md") if block.option("file") == "int8_shift.py"]
    (tmp_path / "int8_shift.py").write_text(module.text, encoding="utf-8")
    write_metadata(tmp_path, "int8-shift", "int8_shift = int8_shift:Int8Shift")
    return tmp_path


def run(plugin: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(plugin)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )


def test_another_package_brings_a_method_that_policies_and_models_use(plugin: Path) -> None:
    program = textwrap.dedent("""
        from policyquant import Inventory, load_policy, resolve
        from policyquant.methods.registry import method_for, runnable
        inventory = Inventory.from_tensors([("model.layers.0.mlp.down_proj.weight", (8, 8), "BF16")])
        plan = resolve(load_policy({"layers": {"*.down_proj": "rounded"}}), inventory)
        assert not plan.errors(), plan.errors()
        layer = plan["model.layers.0.mlp.down_proj"]
        print(layer.scheme, layer.bytes_after, type(method_for(layer.scheme)).__name__, "rounded" in runnable())
    """)
    finished = run(plugin, "-c", program)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "rounded (weight int8 per channel) 96 Rounded True"


def test_a_model_is_built_by_a_method_that_nothing_but_its_entry_point_tells_of(documented: Path) -> None:
    """Linear, merged and expert layers: their bytes are the plan's, and they compute what the method says."""
    program = textwrap.dedent("""
        import torch
        from policyquant import build
        from policyquant.layers.base import WeightLayer
        from policyquant.models.families import model_factory

        config = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 32}
        config |= {"intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_local_experts": 4}
        config["num_key_value_heads"] = 2
        torch.manual_seed(0)
        model = build(model_factory(config), policy={"layers": {"decoder": "int8_shift"}})
        layers = [each for each in model.modules() if isinstance(each, WeightLayer)]
        layers = [each for each in layers if each.scheme.method == "int8_shift"]
        print(*sorted(type(layer).__name__ for layer in layers))
        for layer in layers:
            counts = None if layer.num_experts is None else [3, 0, 1, 2]
            x = torch.randn(6, layer.in_features)
            y = layer(x) if counts is None else layer(x, counts)
            torch.testing.assert_close(y.double(), layer.quant_method.reference(layer, x, counts), rtol=1e-5, atol=1e-5)
            rows = layer.out_features * (layer.num_experts or 1)
            assert sum(buffer.nbytes for buffer in layer.buffers()) == rows * layer.in_features + 4 * rows
            assert [tuple(each.shape) for each in layer.parameters()] == []
    """)
    finished = run(documented, "-c", program)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["ExpertsLinear"] * 2 + ["QKVParallelLinear", "RowParallelLinear"]


def problems_of(plugin: Path, policy: object) -> list[str]:
    """What is said of a policy where the package is installed, which must not be loaded to say it."""
    program = textwrap.dedent(f"""
        import sys
        from policyquant import PolicyError, load_policy
        try:
            load_policy({policy!r})
        except PolicyError as error:
            print(*error.problems, sep="\\n")
        assert not {{"torch", "int8_shift"}} & set(sys.modules)
    """)
    finished = run(plugin, "-c", program)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.parametrize("scheme", ["int8_shift", {"method": "int8_shift"}], ids=str)
def test_a_brought_method_is_not_blamed_for_what_else_is_wrong(documented: Path, scheme: object) -> None:
    wrong = {"method": "fp8", "weight": {"granularity": "block"}}
    (problem,) = problems_of(documented, {"layers": {"*.mlp": scheme, "*.x": wrong}})
    assert problem.startswith("<dict>.layers['*.x']")
    problems = problems_of(documented, {"default": scheme, "expect": {"layers": {"*.mlp": scheme}}, "untie": 3})
    assert [problem.partition(":")[0] for problem in problems] == ["<dict>.untie"]
    (problem,) = problems_of(
        documented, {"layers": [{"match": "*.mlp", "method": "int8_shift"}, {"match": "*", "method": 3}]}
    )
    assert problem.startswith("<dict>.layers[1]")


def test_a_misspelled_brought_method_is_answered_with_its_name(documented: Path) -> None:
    (problem,) = problems_of(documented, {"layers": {"*.mlp": "int8_shft"}})
    assert "unknown method 'int8_shft'; did you mean 'int8_shift'? (known: none, fp8, " in problem
    assert problem.endswith(", int8_shift)")


def test_a_rule_without_a_method_may_refine_a_brought_one(plugin: Path) -> None:
    code = PLUGIN.replace("import MethodSpec", "import Choices, MethodSpec").replace(
        'Quantization("int8", "channel")', 'Quantization("int8", "group", group=48), None, Choices(group=(48, 96))'
    )
    (plugin / "rounding_methods.py").write_text(code)
    refined = {"layers": [{"match": "*", "method": "rounded"}, {"match": "*.mlp", "weight": {"group": 96}}]}
    loading = "from policyquant import load_policy; load_policy({!r})"
    finished = run(plugin, "-c", loading.format(refined))
    assert finished.returncode == 0, finished.stderr
    finished = run(plugin, "-c", loading.format({"layers": {"*.mlp": {"weight": {"group": 95}}}}))
    assert "no method takes this weight" in finished.stderr


def test_a_plan_with_a_brought_method_is_shown_saved_and_read_again(plugin: Path, tmp_path: Path) -> None:
    model = str(ROOT / "tests/data/models/Mixtral-8x7B-v0.1.json.gz")
    policy = tmp_path / "policy.yaml"
    policy.write_text('layers: {"*.o_proj": rounded}\n', encoding="utf-8")
    saved = str(tmp_path / "plan.json")
    finished = run(plugin, "-m", "policyquant", "plan", model, "--policy", str(policy), "--output", saved)
    assert finished.returncode == 0, finished.stderr
    shown = run(plugin, "-m", "policyquant", "inspect", saved, "--method", "rounded")
    assert shown.returncode == 0, shown.stderr
    assert "self_attn.o_proj" in shown.stdout
    wrong = run(plugin, "-m", "policyquant", "inspect", saved, "--method", "runded")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "no method is named 'runded'; did you mean 'rounded'?" in wrong.stderr


def test_a_brought_method_without_a_reference_is_refused_by_name(plugin: Path) -> None:
    unfinished = PLUGIN + "\n    reference_weight = Unquantized.__mro__[1].reference_weight\n"
    (plugin / "rounding_methods.py").write_text(unfinished)
    finished = run(plugin, "-c", "from policyquant.methods.registry import method_class; method_class('rounded')")
    message = "method 'rounded' of rounding_methods.Rounded cannot be used: it does not define reference_weight"
    assert message in finished.stderr


def test_a_method_that_cannot_be_loaded_is_an_error_that_names_its_package(plugin: Path) -> None:
    (plugin / "rounding_methods.py").write_text("import a_module_that_is_not_there")
    program = "from policyquant.policy.methods import METHODS; METHODS['rounded']"
    finished = run(plugin, "-c", program)
    assert "method 'rounded' of rounding_methods:Rounded cannot be loaded: No module named" in finished.stderr


def test_a_brought_method_is_listed_with_its_package(plugin: Path) -> None:
    finished = run(plugin, "-m", "policyquant", "methods")
    assert (finished.returncode, finished.stderr.count("\n")) == (0, 1)
    last = finished.stdout.splitlines()[-1].split(maxsplit=4)
    assert last == ["rounded", "by", "rounding-methods", "1.0", "Weights rounded to whole steps."]


def test_a_brought_method_is_listed_without_being_loaded(packaged_plugin: Path) -> None:
    (packaged_plugin / "rounding" / "__init__.py").write_text("raise RuntimeError('was loaded')")
    finished = run(packaged_plugin, "-m", "policyquant", "methods")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1].endswith("Weights rounded to whole steps.")


@pytest.mark.parametrize("kind", ["plugin", "packaged_plugin"])
def test_a_brought_method_is_described_by_what_its_file_says(kind: str, request: pytest.FixtureRequest) -> None:
    finished = run(request.getfixturevalue(kind), "-m", "policyquant", "methods", "rounded")
    assert finished.returncode == 0, finished.stderr
    value = {"plugin": "rounding_methods:Rounded", "packaged_plugin": "rounding.methods:Rounded"}[kind]
    assert f"runs    yes, by rounding-methods 1.0 ({value})\nweight  int8 per channel\n" in finished.stdout
    assert finished.stdout.endswith("\n\nWhat it does\nRounds.\n\nNumerics\nq = round(w / s)\n")
    missing = "When to use it, Shapes and alignment, What runs it, Example"
    assert finished.stderr == f"note: the file of {value} says nothing under: {missing}\n"


@pytest.mark.parametrize("text", [None, "syntax error", "\0", PLUGIN.partition('"""\n\n')[2]])
def test_a_brought_method_whose_file_says_nothing_is_listed_all_the_same(plugin: Path, text: str | None) -> None:
    file = plugin / "rounding_methods.py"
    file.unlink() if text is None else file.write_text(text)
    finished = run(plugin, "-m", "policyquant", "methods")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1].split() == ["rounded", "by", "rounding-methods", "1.0"]


@pytest.mark.parametrize("value", ["not a name", ":", "..", "rounding_methods", "no_such_module:Rounded"])
def test_an_entry_point_that_leads_nowhere_is_listed_and_refused(plugin: Path, value: str) -> None:
    write_metadata(plugin, "rounding-methods", f"rounded = {value}")
    listed = run(plugin, "-m", "policyquant", "methods")
    assert (listed.returncode, listed.stdout.splitlines()[-1].split()[0]) == (0, "rounded")
    described = run(plugin, "-m", "policyquant", "methods", "rounded")
    assert (described.returncode, described.stdout) == (2, "")
    assert described.stderr.startswith("error: method 'rounded'")
    assert described.stderr.count("\n") == 1


def test_a_brought_method_that_cannot_be_loaded_cannot_be_described(plugin: Path) -> None:
    (plugin / "rounding_methods.py").write_text("import a_module_that_is_not_there")
    finished = run(plugin, "-m", "policyquant", "methods", "rounded")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("error: method 'rounded' of rounding_methods:Rounded cannot be loaded: No module")


def test_a_package_may_bring_the_code_of_a_method_that_we_only_describe(plugin: Path) -> None:
    """Under our name it keeps our defaults, and it runs."""
    code = PLUGIN.replace(PLUGIN[PLUGIN.index("    spec = ") :], '    spec = METHODS["int8"]\n')
    (plugin / "rounding_methods.py").write_text(code.replace("import MethodSpec", "import METHODS"))
    write_metadata(plugin, "rounding-methods", "int8 = rounding_methods:Rounded")
    listed = run(plugin, "-m", "policyquant", "methods")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("int8 ")]
    assert " by rounding-methods 1.0  int8 per channel  " in line
    described = run(plugin, "-m", "policyquant", "methods", "int8")
    assert "yes, by rounding-methods 1.0" in described.stdout
    assert "\nWhat it does\nRounds.\n" in described.stdout


def test_what_runs_is_told_without_loading_torch() -> None:
    program = (
        "import sys; from policyquant.methods.registry import runnable; runnable(); assert 'torch' not in sys.modules"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert finished.returncode == 0, finished.stderr


def test_the_methods_that_run_begin_with_our_own() -> None:
    assert runnable()[: len(BUILT_IN)] == list(BUILT_IN)
