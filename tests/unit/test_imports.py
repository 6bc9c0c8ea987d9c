"""The arrows between packages: imports point one way, and jax stays where it belongs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What each package may import of this project, itself aside.
BASE = {"errors", "files", "compiled"}
DATA = BASE | {"records", "benchmark", "protocol", "requests", "training", "tokenization"}
ALLOWED = {
    "errors": set(),
    "compiled": set(),
    "files": {"errors"},
    "records": {"errors"},
    "training": set(),
    "requests": {"training"},
    "protocol": BASE,
    "tokenization": BASE | {"chat"},
    "benchmark": BASE | {"records"},
    "chat": BASE,
    "web": set(),
    "construction": BASE | {"records", "benchmark", "tokenization", "web"},
    "neighbours": DATA,
    "quiz": DATA | {"web"},
    "attacks": DATA | {"neighbours", "quiz"},
    "evaluation": DATA | {"attacks"},
    "tables": DATA | {"attacks", "evaluation", "construction"},
    "released": DATA | {"attacks", "evaluation"},
    "report": DATA | {"attacks", "evaluation", "construction", "tables"},
    "runtime": BASE,
    "models": BASE,
    "scoring": BASE | {"requests", "training", "models", "runtime"},
    "generation": BASE | {"requests", "models", "runtime", "scoring"},
    "engine": BASE | {"requests", "training", "models", "scoring", "generation", "tuning"},
    "tuning": BASE | {"models", "requests", "training", "runtime", "scoring"},
    "conversion": BASE | {"models"},
    "sample": DATA | {"attacks", "tuning", "conversion", "runtime", "models"},
    "commands": None,  # commands and the command line may use everything below them
    "cli": None,
    "cli_construction": None,
    "cli_results": None,
    "__main__": {"cli"},
    "__init__": set(),
}
JAX = {"models", "scoring", "generation", "engine", "tuning", "runtime", "conversion"}
FORBIDDEN = {"torch", "transformers", "pickle", "cloudpickle", "dill", "marshal", "shelve"}
LAZY = {"chat": {"transformers"}, "neighbours": {"transformers", "torch"}}  # where they are needed, inside a function


def modules():
    for folder in ("olmodetect_jax", "conversion"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield path, ("conversion" if folder == "conversion" else parts[1])


def imported(path):
    """Dotted names of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def target(name):
    parts = name.split(".")
    if parts[0] == "conversion":
        return "conversion"
    if parts[0] != "olmodetect_jax" or parts[1:2] == ["__version__"]:
        return None
    return parts[1]


@pytest.mark.parametrize(("path", "package"), list(modules()), ids=lambda v: v.stem if isinstance(v, Path) else v)
def test_arrows_point_one_way(path, package):
    assert package in ALLOWED, f"{path}: a package the design does not know"
    names = list(imported(path))
    allowed = ALLOWED[package]
    wrong = {n for n in names if allowed is not None and target(n) not in {None, package, *allowed}}
    assert not wrong, f"{path} imports {wrong}"
    roots = {n.split(".")[0] for n in names}
    forbidden = roots & FORBIDDEN - LAZY.get(package, set())
    assert not forbidden, f"{path} imports {forbidden}"
    if package not in JAX:
        assert not roots & {"jax", "jaxlib", "flax", "optax", "orbax"}, f"{path} imports jax"


@pytest.mark.parametrize("module", ["cli", "attacks.registry", "evaluation.tables", "report.page", "records", "chat"])
def test_importing_does_not_load_jax(module):
    heavy = {"jax", "torch", "transformers"}
    code = f"import sys, olmodetect_jax.{module}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_no_address_of_a_host_in_the_code():
    for folder in ("olmodetect_jax", "conversion", "configs", "scripts"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".yaml", ".j2", ".js", ".css"}:
                text = path.read_text(encoding="utf-8")
                assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), path
