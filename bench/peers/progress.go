package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far a run is, on a terminal. A nil bar shows nothing.
type bar struct {
	shown *progressbar.ProgressBar
	done  int
}

func newBar(w io.Writer, steps int) *bar {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return newBarOn(w, steps)
}

func newBarOn(w io.Writer, steps int) *bar {
	return &bar{shown: progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(24),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(false),
		progressbar.OptionUseANSICodes(false),
	)}
}

// describe says who runs.
func (b *bar) describe(format string, args ...any) {
	if b != nil {
		b.shown.Describe(fmt.Sprintf(format, args...))
	}
}

// add counts a job.
func (b *bar) add() {
	if b != nil {
		b.done++
		b.shown.Set(b.done)
	}
}

// skip counts jobs up to n that nobody does any more.
func (b *bar) skip(n int) {
	if b != nil && b.done < n {
		b.done = n
		b.shown.Set(b.done)
	}
}

// finish takes the bar off the screen.
func (b *bar) finish() {
	if b != nil {
		b.shown.Clear()
	}
}
