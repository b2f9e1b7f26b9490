"""pyproject.toml names folders one by one; this holds it to the tree."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]


def test_every_package_of_the_tree_is_listed() -> None:
    tree = {
        f"antiphon.{init.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
        for folder in ROOT.iterdir()
        if folder.is_dir()
        and not folder.name.startswith(".")
        and folder.name not in ("build", "dist", "tests")
        for init in folder.rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == tree


def test_every_package_is_found_in_its_folder() -> None:
    assert list(FOLDERS) == PROJECT["tool"]["setuptools"]["packages"]
    for package, folder in FOLDERS.items():
        assert package == f"antiphon.{folder}"
        assert (ROOT / folder / "__init__.py").is_file()


def test_every_module_is_in_a_package() -> None:
    for folder in FOLDERS.values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), f"{module} is in no package"


def test_the_tools_look_at_every_package() -> None:
    assert sorted(PROJECT["tool"]["pyright"]["include"]) == sorted(FOLDERS.values())


def test_every_entry_point_names_a_module() -> None:
    points = [PROJECT["project"]["scripts"], *PROJECT["project"]["entry-points"].values()]
    for name, value in (item for group in points for item in group.items()):
        package, _, module = value.partition(":")[0].rpartition(".")
        assert (ROOT / FOLDERS[package] / f"{module}.py").is_file(), f"{name} = {value}"
