"""Builds the sparse kernels: the same source for each instruction set, in one library with a plain C interface.

Where that fails, the package is installed without them, and says so when they would be used.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("src/cigl/runtime/program/kernels")
X86 = platform.machine().lower() in ("x86_64", "amd64")
SETS = {"portable": (8, [])}  # name: floats in a vector, flags
if X86:
    SETS |= {"avx2": (8, ["-mavx2", "-mfma"]), "avx512": (16, ["-mavx512f", "-mavx2", "-mfma"])}
FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi"]


class BuildKernels(build_ext):
    def build_extension(self, extension: Extension) -> None:
        try:
            self.build(extension, ["-fopenmp"])
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
        self.compiler.link_shared_object(objects, target, extra_postargs=openmp, target_lang="c++")


setup(
    cmdclass={"build_ext": BuildKernels},
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
