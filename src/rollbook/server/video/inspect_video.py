"""Video: what a file contains, whether browsers can play it, and a copy that every browser can play.

Bad content is a result, never an exception. FFmpeg opens only the containers listed here, and only the file itself: a
playlist that pretends to be a video could otherwise make it read other files or contact other machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.contracts.video_file import CONTAINERS, container_of, mp4_boxes
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

KEYFRAME_GAP_S = Fraction(1, 2)
"""Longest distance between key frames that we encode: seeking shows any frame at once."""

_DEMUXERS = {"mp4": "mov", "webm": "matroska", "matroska": "matroska", "avi": "avi"}
_PLAYABLE = {
    ("mp4", "h264"): ("yuv420p", "yuvj420p"),
    ("mp4", "av1"): ("yuv420p", "yuv420p10le"),
    ("mp4", "vp9"): ("yuv420p", "yuv420p10le"),
    ("webm", "av1"): ("yuv420p", "yuv420p10le"),
    ("webm", "vp9"): ("yuv420p", "yuv420p10le"),
}
"""Pixel formats that browsers show, by container and codec."""
_MOST_BOXES = 10_000
_READ_LIMIT_S = 60.0
_THREADS = 2
_PADDING = 1 << 18


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Limits before decoding: a small file can claim to be enormous."""

    most_pixels: int = 7680 * 4320
    """Pixels of one frame."""
    most_duration_s: float = 6 * 3600.0
    most_frames: int = 2_000_000


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """None: unknown."""

    playable: bool
    """A browser can play the file as it is."""
    detail: str | None = None
    """Why a browser cannot play it."""
    decodable: bool = False
    """The server can decode it: a file that is not playable can be transcoded."""
    container: str | None = None
    codec: str | None = None
    pixel_format: str | None = None
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    duration_s: float | None = None
    frames: int | None = None
    faststart: bool | None = None
    """The index comes before the frames, so that playback can start before the whole file is loaded. MP4 only."""
    keyframe_gap_s: float | None = None
    """The longest time between two frames from which playback can start."""


class _Refused(Exception):
    """What is wrong with the content."""


# --------------------------------------------------------------------------------------------- probe


def probe(path: Path, limits: VideoLimits = VideoLimits()) -> VideoFacts:
    """Reads the index and decodes one frame. A missing file is the caller's error and is raised."""
    _require_av()
    with open(path, "rb") as file:
        container = container_of(file)
        boxes = tuple(islice(mp4_boxes(file), _MOST_BOXES)) if container == "mp4" else ()
    if container is None:
        return VideoFacts(False, f"this is not a video: expected {CONTAINERS}")
    facts = VideoFacts(False, container=container, faststart=_faststart(boxes))
    try:
        with _bad_content():
            if container == "mp4":
                _check_boxes(boxes, path.stat().st_size)
            with _opened(path, container) as opened:
                return _inspected(opened, facts, path.stat().st_size, limits)
    except _Refused as refused:
        return replace(facts, detail=str(refused))


def _inspected(
    opened: InputContainer, facts: VideoFacts, file_size: int, limits: VideoLimits
) -> VideoFacts:
    stream = _video_stream(opened, limits)
    facts = replace(
        facts,
        codec=stream.codec_context.codec.canonical_name,
        pixel_format=stream.codec_context.pix_fmt,
        width=stream.codec_context.width,
        height=stream.codec_context.height,
    )
    try:
        with _bad_content():
            _check_size(facts.width, facts.height, limits)
            facts = _with_times(opened, stream, facts, file_size)
            _check_length(facts, limits)
            facts = replace(facts, decodable=_first_frame_decodes(opened, stream))
    except _Refused as refused:
        return replace(facts, detail=str(refused))
    shown = _PLAYABLE.get((facts.container or "", facts.codec or ""))
    if shown is None:
        text = f"browsers do not play {facts.codec} in {facts.container}"
        return replace(facts, detail=text)
    if facts.pixel_format not in shown:
        text = f"browsers do not show {facts.pixel_format} of {facts.codec}; 8-bit 4:2:0 they do"
        return replace(facts, detail=text)
    return replace(facts, playable=True)


def _with_times(
    opened: InputContainer, stream: VideoStream, facts: VideoFacts, file_size: int
) -> VideoFacts:
    base = stream.time_base or Fraction(1, 1000)
    packets = _packets(opened, stream, file_size)
    starts = sorted(time for time, _ in packets)
    keys = sorted(time for time, is_key in packets if is_key)
    if not keys:
        raise _Refused("there is no frame to start from")
    rate = stream.average_rate or stream.guessed_rate
    step = starts[-1] - starts[-2] if len(starts) > 1 else 0
    length = starts[-1] + step - starts[0]
    gap = max(after - before for before, after in pairwise([*keys, starts[-1] + step]))
    return replace(
        facts,
        fps=float(rate) if rate else None,
        duration_s=float(length * base),
        frames=len(packets),
        keyframe_gap_s=float(gap * base),
    )


def _packets(opened: InputContainer, stream: VideoStream, file_size: int) -> list[tuple[int, bool]]:
    """The time of each frame and whether it is a key frame: from the index, or by reading the file."""
    entries = stream.index_entries
    if 0 < len(entries) == stream.frames:
        found = [(entry.timestamp, entry.is_keyframe, entry.pos + entry.size) for entry in entries]
        if max(end for _, _, end in found) > file_size:
            raise _Refused("the file is cut short: its index names frames after its end")
        return [(time, is_key) for time, is_key, _ in found]
    read = [
        (packet.dts if packet.pts is None else packet.pts, packet.is_keyframe)
        for packet in opened.demux(stream)
        if packet.size
    ]
    opened.seek(0)
    return [(time, is_key) for time, is_key in read if time is not None]


def _first_frame_decodes(opened: InputContainer, stream: VideoStream) -> bool:
    for _ in opened.decode(stream):
        return True
    raise _Refused("not one frame can be decoded")


# ------------------------------------------------------------------------------------------ transcode


def transcode(
    source: Path,
    out: Path,
    limits: VideoLimits = VideoLimits(),
) -> VideoFacts:
    """Makes an H.264 MP4 that every browser plays and seeks well. Returns the facts of the copy, or why there is none.
    Frames keep their times, counted from the first one. Sound is dropped."""
    before = probe(source, limits)
    if not before.decodable:
        return replace(before, playable=False)
    try:
        with _bad_content(), _opened(source, before.container or "") as opened:
            _write_copy(opened, out, limits)
        return probe(out, limits)
    except _Refused as refused:
        with suppress(FileNotFoundError):
            out.unlink()
        return replace(before, playable=False, detail=f"it cannot be transcoded: {refused}")


def _write_copy(opened: InputContainer, out: Path, limits: VideoLimits) -> None:
    import av
    from av.video.frame import PictureType

    source = _video_stream(opened, limits)
    frames = _with_keys(_timed(opened, source, limits), source.time_base or Fraction(1, 1000))
    first, is_key = next(frames, (None, True))
    if first is None:
        raise _Refused("not one frame can be decoded")
    shape = _Shape(first)
    with av.open(out, "w", format="mp4", options={"movflags": "+faststart"}) as copy:
        target = _add_target(copy, shape.applied(first), source)
        frame: VideoFrame | None = first
        while frame is not None:
            pts = frame.pts
            shaped = shape.applied(frame)
            shaped.pts, shaped.time_base = pts, source.time_base
            # frame types of the source mean nothing here, and the encoder would copy them
            shaped.pict_type = PictureType.I if is_key else PictureType.NONE
            copy.mux(target.encode(shaped))
            frame, is_key = next(frames, (None, True))
        copy.mux(target.encode(None))


def _add_target(copy: Any, like: VideoFrame, source: VideoStream) -> Any:
    rate = source.average_rate or source.guessed_rate or Fraction(30)
    target = copy.add_stream(
        "libx264",
        rate=rate,
        options={"crf": "20", "preset": "veryfast", "forced-idr": "1", "profile": "high"},
    )
    context = target.codec_context
    context.width, context.height, context.pix_fmt = like.width, like.height, "yuv420p"
    context.time_base = source.time_base
    context.thread_count = _THREADS
    context.color_range = like.color_range
    context.colorspace = like.colorspace
    context.color_primaries = like.color_primaries
    context.color_trc = like.color_trc
    return target


def _timed(
    opened: InputContainer, stream: VideoStream, limits: VideoLimits
) -> Iterator[VideoFrame]:
    """Frames with increasing times from 0, within the limits whatever the headers claim."""
    base = stream.time_base or Fraction(1, 1000)
    start: int | None = None
    last = -1
    stream.codec_context.thread_count = _THREADS
    for number, frame in enumerate(opened.decode(stream)):
        _check_size(frame.width, frame.height, limits)
        if number >= limits.most_frames:
            raise _Refused(f"there are more than {limits.most_frames} frames")
        pts = last + 1 if frame.pts is None else frame.pts
        start = pts if start is None else start
        frame.pts = last = max(pts - start, last + 1)
        if last * base > limits.most_duration_s:
            raise _Refused(f"it is longer than {limits.most_duration_s:g} s")
        yield frame


def _with_keys(frames: Iterator[VideoFrame], base: Fraction) -> Iterator[tuple[VideoFrame, bool]]:
    """A frame becomes a key frame when the next one would be too far from the last key frame."""
    key = 0
    waiting: VideoFrame | None = None
    for frame in frames:
        if waiting is not None:
            is_key = waiting.pts == 0 or (_pts(frame) - key) * base > KEYFRAME_GAP_S
            key = _pts(waiting) if is_key else key
            yield waiting, is_key
        waiting = frame
    if waiting is not None:
        yield waiting, waiting.pts == 0


def _pts(frame: VideoFrame) -> int:
    return frame.pts or 0


class _Shape:
    """Turns every frame upright, to one even size, in 8-bit 4:2:0, with its colours preserved."""

    def __init__(self, first: VideoFrame) -> None:
        self._turns = round(first.rotation / 90) % 4
        self._size = first.width, first.height
        self._graph: Any = None

    def applied(self, frame: VideoFrame) -> VideoFrame:
        if (frame.width, frame.height) != self._size:
            frame = frame.reformat(*self._size)
        if self._turns or frame.width % 2 or frame.height % 2:
            frame = self._filtered(frame)
        return _in_420(frame)

    def _filtered(self, frame: VideoFrame) -> VideoFrame:
        if self._graph is None:
            self._graph = _graph(frame, self._turns)
        self._graph.push(frame)
        shaped: VideoFrame = self._graph.pull()
        return shaped


def _graph(frame: VideoFrame, turns: int) -> Any:
    import av.filter

    graph = av.filter.Graph()
    # the rotation is counter-clockwise
    steps = [("transpose", "cclock")] * turns + [("pad", "ceil(iw/2)*2:ceil(ih/2)*2")]
    nodes = [
        graph.add_buffer(
            width=frame.width,
            height=frame.height,
            format=frame.format,
            time_base=frame.time_base or Fraction(1, 1000),
        ),
        *(graph.add(name, arguments) for name, arguments in steps),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    return graph


def _in_420(frame: VideoFrame) -> VideoFrame:
    """RGB sources are marked as BT.709, which they are after conversion; others keep what is known."""
    from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

    if frame.format.name == "yuv420p" and frame.color_range != ColorRange.JPEG:
        return frame
    if frame.format.is_rgb or frame.format.name.startswith("pal"):
        return frame.reformat(
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
            dst_color_primaries=ColorPrimaries.BT709,
            dst_color_trc=ColorTrc.BT709,
        )
    full = frame.color_range == ColorRange.JPEG or frame.format.name.startswith("yuvj")
    known = frame.colorspace, frame.color_primaries, frame.color_trc
    converted = frame.reformat(
        format="yuv420p",
        src_color_range=ColorRange.JPEG if full else ColorRange.MPEG,
        dst_color_range=ColorRange.MPEG,
    )
    converted.colorspace, converted.color_primaries, converted.color_trc = known
    return converted


# ------------------------------------------------------------------------------------------ containers


def _faststart(boxes: tuple[tuple[bytes, int], ...]) -> bool | None:
    kinds = [kind for kind, _ in boxes]
    if b"moov" not in kinds:
        return None
    return b"mdat" not in kinds[: kinds.index(b"moov")]


def _check_boxes(boxes: tuple[tuple[bytes, int], ...], file_size: int) -> None:
    if b"moov" not in [kind for kind, _ in boxes]:
        raise _Refused("the file has no index: its recording was not ended properly")
    if max(end for _, end in boxes) > file_size:
        raise _Refused("the file is cut short")


def _opened(path: Path, container: str) -> InputContainer:
    import av

    return av.open(
        str(path),
        "r",
        format=_DEMUXERS[container],
        options={"protocol_whitelist": "file", "format_whitelist": "mov,matroska,webm,avi"},
        metadata_errors="replace",
        timeout=_READ_LIMIT_S,
    )


def _require_av() -> None:
    try:
        import av  # noqa: F401
    except ImportError as missing:
        raise ConfigurationError(
            message="video needs PyAV, which is not installed: pip install 'rollbook[server]'"
        ) from missing


def _video_stream(opened: InputContainer, limits: VideoLimits) -> VideoStream:
    if not opened.streams.video:
        raise _Refused("there is no video in the file")
    stream = opened.streams.video[0]
    context: VideoCodecContext | None = stream.codec_context  # although its type says otherwise
    if context is None:
        raise _Refused("its codec is not known here")
    # frames may grow after the header was checked, so the decoder gets the limit; it counts padding too
    context.options = {"max_pixels": str(2 * limits.most_pixels + _PADDING)}
    return stream


def _check_size(width: int | None, height: int | None, limits: VideoLimits) -> None:
    if not width or not height:
        raise _Refused("the frames have no size")
    if width * height > limits.most_pixels:
        raise _Refused(f"frames of {width} x {height} are more than {limits.most_pixels} pixels")


def _check_length(facts: VideoFacts, limits: VideoLimits) -> None:
    if (facts.duration_s or 0) > limits.most_duration_s:
        raise _Refused(f"it is longer than {limits.most_duration_s:g} s")
    if (facts.frames or 0) > limits.most_frames:
        raise _Refused(f"there are more than {limits.most_frames} frames")


@contextmanager
def _bad_content() -> Iterator[None]:
    """Every error of FFmpeg, or of arithmetic on a broken header, concerns the content."""
    from av.error import FFmpegError

    try:
        yield
    except (FFmpegError, ArithmeticError, ValueError, MemoryError) as error:
        said = getattr(error, "strerror", None) or type(error).__name__
        raise _Refused(f"the file is broken ({said})") from error
