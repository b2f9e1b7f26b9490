"""Whisper's log-mel spectrogram in plain numpy.

A frame is 25 ms of audio (400 samples, Hann) every 10 ms (160 samples), centred on its time; its power
spectrum is summed through triangular filters that are equally spaced on Slaney's mel scale. The logarithm is
clamped to eight decades below the loudest value of the window and mapped to about [-1, 1].

Definition: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", section 2.2.
Mel scale: Slaney 1998, "Auditory Toolbox": linear up to 1 kHz, logarithmic above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..pipeline.events import Samples
from .base import SAMPLE_RATE

Mel = NDArray[np.float32]
"""Normalised log-mel spectrogram, shape (n_mels, frames), 100 frames a second."""

N_FFT = 400
HOP = 160
FRAMES_PER_SECOND = SAMPLE_RATE // HOP


def hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's mel to Hz: 200/3 Hz a mel up to 15 mel (1 kHz), then a factor of 6.4 every 27 mel."""
    return np.where(mel < 15.0, mel * (200.0 / 3.0), 1000.0 * 6.4 ** ((mel - 15.0) / 27.0))


def mel_filters(n_mels: int) -> NDArray[np.float32]:
    """Triangular filters of equal area from 0 Hz to Nyquist, shape (n_mels, N_FFT // 2 + 1)."""
    bins = np.fft.rfftfreq(N_FFT, 1.0 / SAMPLE_RATE)
    top = 15.0 + 27.0 * np.log(SAMPLE_RATE / 2 / 1000.0) / np.log(6.4)
    corners = hertz(np.linspace(0.0, float(top), n_mels + 2))
    low, centre, high = (corners[i : i + n_mels, None] for i in range(3))
    triangles = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clip(min=0.0)
    return (triangles * 2.0 / (high - low)).astype(np.float32)


class LogMel:
    """Samples to spectrogram. Holds only constants, so one instance serves any number of threads."""

    def __init__(self, n_mels: int = 80) -> None:
        self.n_mels = n_mels
        self._filters = mel_filters(n_mels)
        # Periodic, as in a Fourier series: one sample longer than the symmetric window, without its last.
        self._window = np.hanning(N_FFT + 1)[:-1].astype(np.float32)

    def __call__(self, samples: Samples) -> Mel:
        """The spectrogram of 16 kHz mono float32 of shape (n,): shape (n_mels, n // HOP).

        The edges are mirrored, so at least N_FFT // 2 + 1 samples are needed; shorter audio is padded with
        zeros to one hop more than that.
        """
        if len(samples) <= N_FFT:
            samples = np.pad(samples, (0, N_FFT + HOP - len(samples)))
        mirrored = np.pad(samples.astype(np.float32, copy=False), N_FFT // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(mirrored, N_FFT)[::HOP][: len(samples) // HOP]
        spectrum = np.fft.rfft(frames * self._window, axis=1)
        power = spectrum.real**2 + spectrum.imag**2
        log = np.log10(np.maximum(self._filters @ power.T.astype(np.float32, copy=False), 1e-10))
        return ((np.maximum(log, log.max() - 8.0) + 4.0) / 4.0).astype(np.float32, copy=False)
