"""Small programs to time on RTL, each named by the text that describes it (benchmarks/rtl_steps.py)."""

from __future__ import annotations

CONVOLUTIONS = (
    "64x14x14 c64k3",
    "64x14x14 c64k3 r",
    "32x28x28 c32k3 r",
    "16x32x32 c16k3",
    "3x32x32 c16k3 r",
    "3x33x33 c32k7s2 r",
    "64x14x14 c128k3s2",
    "32x15x15 c48k3s2 r",
    "128x7x7 c128k3 r",
    "256x4x4 c256k3",
    "64x14x14 c128k1",
    "96x14x14 c24k1 r",
    "24x28x28 c96k1 r",
    "20x13x13 c20k3",
    "17x11x19 c33k3 r",
    "32x14x14 c32k5 r",
    "32x16x16 c32k3d2",
    "64x10x10 c64k3g2",
    "64x8x8 c64k1s2",
    "1x28x28 c8k5 r",
)
DEPTHWISE = ("32x14x14 dw3", "64x10x10 dw3s2 r", "16x28x28 dw3 r", "40x9x9 dw5")
PRODUCTS = (
    "128x256 fc256",
    "64x64 fc64",
    "16x512 fc512",
    "1x512 fc1000",
    "1x64 fc10",
    "33x100 fc70 r",
    "128x128 fc128 r",
    "64x256 fc64",
    "64x64 fc256 r",
    "200x48 fc48",
    "8x1024 fc64",
    "32x64 @0",
)
GROUPS = (
    "32x12x12 c64k3 r c64k3",
    "32x12x12 c32k3 r c32k3 +0 r",
    "16x16x16 c16k3 r c16k3 +0 r c32k3s2 r",
    "24x14x14 c96k1 r dw3 r c24k1",
    "24x14x14 c96k1 r dw3 r c24k1 +0",
    "16x14x14 c64k1 r dw3s2 r c32k1",
    "16x24x24 c16k3 r mp2",
    "3x32x32 c16k3 r mp2 c32k3 r mp2",
    "32x14x14 dw3 r c64k1 r",
    "32x10x10 c32k1 r c32k3 r c128k1",
    "64x128 fc256 r fc128",
    "32x64 fc256 gelu fc64 +0",
    "16x20x20 c16k3 r c16k3 r c16k3 r c16k3 r",
)
HOST = (
    "32x64 softmax",
    "32x64 ln",
    "64x96 ln fc96",
    "32x64 gelu",
    "32x64 fc64 softmax",
    "16x16x16 ap2",
    "64x7x7 gap fc10",
    "32x14x14 mp3",
    "32x14x14 c32k3 sig",
    "24x10x10 c24k1 r gap fc24 sig",
    "32x32 fc32 @0 softmax",
    "16x16x16 +0",
    "64x14x14 c64k1 +0",
)
PROGRAMS = (*CONVOLUTIONS, *DEPTHWISE, *PRODUCTS, *GROUPS, *HOST)

# What the clock was far off for when only the programs above had been timed.
FITTED = {
    "ragged channels": (
        "20x14x14 c40k3",
        "24x12x12 c72k3 r",
        "12x20x20 c20k3 r",
        "40x10x10 c24k1 r",
        "50x100 fc50",
        "33x65 fc40 r",
    ),
    "product of tensors": ("32x64 fc64 *0", "16x12x12 c16k1 *0", "48x32 sig *0"),
    "tiny product": ("1x16 fc16", "4x32 fc16", "2x64 fc24 r", "8x8 fc8"),
    "1x1 on few pixels": ("128x4x4 c64k1", "256x2x2 c64k1", "64x7x7 c96k1 r", "160x3x3 c160k1"),
    "max pool alone": ("32x14x14 mp2", "16x20x20 mp2", "48x8x8 mp2"),
    "addition": ("32x8x8 c32k1 +0", "49x64 fc64 +0", "16x20x20 c16k1 +0"),
    "weights from DRAM": ("16x1024 fc1024", "1x512 fc2048"),
}
HELD_OUT = {
    "ragged channels": ("28x13x13 c36k3 r", "10x18x18 c26k3", "44x11x11 c20k1", "25x70 fc90"),
    "product of tensors": ("24x96 fc96 sig *0", "20x10x10 c20k1 *0"),
    "tiny product": ("1x48 fc20", "3x20 fc40", "16x16 fc16"),
    "1x1 on few pixels": ("192x4x4 c32k1 r", "96x5x5 c128k1", "320x1x1 c64k1"),
    "max pool alone": ("24x20x20 mp2", "64x6x6 mp2"),
    "addition": ("24x10x10 c24k1 +0", "100x48 fc48 +0", "96x7x7 c96k1 +0"),
    "weights from DRAM": ("8x768 fc1536", "4x1024 fc1024 r fc512"),
}
"""Chosen before any of them was timed, and never fitted to."""
REALISED = {
    "max pool": (
        "16x16x16 mp3s2",
        "16x7x7 mp3s2p1",
        "16x8x8 mp3s2e1",
        "16x8x8 c16k3 &0 mp2",
        "16x8x8 c16k3 r mp2 up2 +2",
    ),
    "average pool": ("16x8x8 ap2", "16x8x8 ap3s1p1"),
    "mean": ("32x8x8 gap", "64x3x3 gap", "16x64 mean", "16x64 sum"),
    "channel product": ("32x4x4 se8", "24x5x5 se8"),
    "table of a product": ("24x32 fc32 sig *0",),
    "merged columns": ("3x32x32 c16k3s2 r", "3x32x32 c32k7s2 r"),
    "softmax": ("16x16 att1", "32x32 att2"),
    "layer norm": ("16x32 ln fc32", "16x32 fc32 +0 ln fc32", "16x48 ln"),
    "RMS norm": ("16x32 rms fc32", "16x48 rms"),
    "rotary embedding": ("16x128 fc128 rot8",),
    "copy": ("16x8x8 c16k1 &0 c16k1", "16x8x8 sh4 c16k1", "8x8x8 up2 c8k3"),
}
"""Operators that other layers do the work of, or Gemmini's DMA: timed in both forms, never fitted to."""
MORE = tuple(text for kinds in (FITTED, HELD_OUT, REALISED) for texts in kinds.values() for text in texts)


def kind_of(text: str) -> str:
    """The family a program is listed in."""
    families = {
        "convolution": CONVOLUTIONS,
        "depthwise": DEPTHWISE,
        "product": PRODUCTS,
        "group": GROUPS,
        "host": HOST,
        **{kind: (*FITTED[kind], *HELD_OUT[kind]) for kind in FITTED},
        **REALISED,
    }
    return next((name for name, texts in families.items() if text in texts), "network")


def is_held_out(text: str) -> bool:
    """Whether no coefficient may ever be fitted to a program."""
    return any(text in texts for texts in (*HELD_OUT.values(), *REALISED.values()))
