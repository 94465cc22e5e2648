"""The sparse file, and the engine that runs sparse models on a CPU."""

from cigl.runtime.saving import describe, load, save

__all__ = ["describe", "load", "save"]
