"""Builds the sparse kernels: the same source for each instruction set, in one library with a plain C interface.

The library is loaded with ctypes and knows nothing of Python, so that one wheel serves every Python of a platform.
Where building fails, the package is installed without kernels, and says so when they would be used.
"""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("src/cigl/runtime/program/kernels")
X86 = platform.machine().lower() in ("x86_64", "amd64")
SETS = {"portable": (8, [])}  # name: floats in a vector, flags
if X86:
    SETS |= {"avx2": (8, ["-mavx2", "-mfma"]), "avx512": (16, ["-mavx512f", "-mavx2", "-mfma"])}
FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi"]
# torch on Linux loads OpenMP for the whole process, and the kernels share its threads: they are compiled for OpenMP but
# linked to none, because a second one would compete for the same cores. Elsewhere they use one thread.
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []


class BuildKernels(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, extension: Extension) -> None:
        try:
            self.build(extension, OPENMP)
        except Exception:  # a compiler without OpenMP still makes kernels, for one thread
            self.build(extension, [])

    def build(self, extension: Extension, openmp: list[str]) -> None:
        def compile(name: str, folder: str, macros: list[tuple[str, str]], flags: list[str]) -> list[str]:
            return self.compiler.compile(
                [str(KERNELS / name)],
                output_dir=str(Path(self.build_temp) / folder),
                macros=macros,
                extra_postargs=[*FLAGS, *openmp, *flags],
            )

        objects = compile("library.cpp", "library", [("CIGL_X86", "1")] if X86 else [], [])
        objects += compile("updates.cpp", "updates", [], [])
        for name, (lanes, flags) in SETS.items():
            objects += compile("variant.cpp", name, [("VARIANT", name), ("LANES", str(lanes))], flags)
        target = self.get_ext_fullpath(extension.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, target, target_lang="c++")


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            "cigl.runtime.program._kernels",
            sorted(map(str, KERNELS.glob("*.cpp"))),
            depends=sorted(map(str, KERNELS.glob("*.h"))),
            language="c++",
            optional=True,
        )
    ],
)
