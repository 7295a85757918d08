"""The native libraries and the SBOM as steps of the build; everything else is in pyproject.toml.

One wheel for all Pythons, and for both kinds of processors, where they could be compiled; a pure one without them
elsewhere: hfx works without, and says so.
"""

import runpy
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

HERE = Path(__file__).parent
NATIVE = Path("hfx", "native")
COMPILER = runpy.run_path(str(HERE / NATIVE / "build.py"))
IS_COMPILED = COMPILER["is_current"]()  # as in a clone after `make demo`
SBOM = runpy.run_path(str(HERE / "release" / "sbom.py"))


class BuildNative(Command):
    """Compile hfx/native into the wheel, or in place for an editable installation."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        """Without values yet, as setuptools wants it."""
        self.build_lib = None

    def finalize_options(self) -> None:
        """Where the wheel is collected: as the Python files."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def libraries(self) -> list[Path]:
        """Where the libraries are or will be."""
        folder = Path("." if self.editable_mode else self.build_lib, NATIVE).absolute()
        return [folder / target.library for target in COMPILER["TARGETS"].values()]

    def run(self) -> None:
        """A failure leaves no library, not even an older one."""
        libraries = self.libraries()
        if IS_COMPILED and not self.editable_mode:
            self.mkpath(str(libraries[0].parent))
            for library in libraries:
                self.copy_file(str(HERE / NATIVE / library.name), str(library))
            return
        try:
            COMPILER["build"](libraries[0].parent)
        except COMPILER["BuildFailed"] as error:
            for library in libraries:
                library.unlink(missing_ok=True)
            self.warn(f"hfx is installed without its native kernels.\n{error}")


class Wheel(bdist_wheel):
    """The tag says what the libraries need: no Python, the glibc that they were linked for."""

    def initialize_options(self) -> None:
        """Files are stored: versions of zlib compress to different bytes, and others could not build the same wheel."""
        super().initialize_options()
        self.compression = "stored"

    def get_tag(self) -> tuple[str, str, str]:
        """As wheel files are named: Python, ABI, platform."""
        native = all(library.exists() for library in self.get_finalized_command("build_native").libraries())
        platforms = ".".join(sorted(f"manylinux_2_17_{machine}" for machine in COMPILER["TARGETS"]))
        return ("py3", "none", platforms) if native else super().get_tag()

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        """Write the SBOM beside the file WHEEL, whose folder has METADATA by now."""
        super().write_wheelfile(wheelfile_base, *arguments)
        libraries = self.get_finalized_command("build_native").libraries()
        contents = {f"{NATIVE}/{each.name}": each.read_bytes() for each in libraries if each.exists()}
        sbom = Path(wheelfile_base, SBOM["FILE"])
        sbom.parent.mkdir(exist_ok=True)
        metadata = Path(wheelfile_base, "METADATA").read_text(encoding="utf-8")
        sbom.write_text(SBOM["document"](metadata, contents, COMPILER["ZIGLANG"]), encoding="utf-8")


build.sub_commands.append(("build_native", None))
# ziglang compiles hfx/native; without it, or elsewhere, hfx is installed without native kernels. pip gets its 101 MB
# only where they are needed.
COMPILERS = [] if IS_COMPILED or COMPILER["unsupported"]() else [COMPILER["ZIGLANG"]]
setup(cmdclass={"build_native": BuildNative, "bdist_wheel": Wheel}, setup_requires=COMPILERS)
