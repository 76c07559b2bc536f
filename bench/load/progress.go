package load

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far a run is, on a terminal. A nil bar shows nothing.
type bar struct{ shown *progressbar.ProgressBar }

func newBar(w io.Writer, steps int) *bar {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return &bar{progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(false),
		progressbar.OptionUseANSICodes(false),
	)}
}

// describe says what is being measured.
func (b *bar) describe(text string) {
	if b != nil {
		b.shown.Describe(text)
	}
}

// clear makes room for a line of text.
func (b *bar) clear() {
	if b != nil {
		b.shown.Clear()
	}
}

// add counts a phase.
func (b *bar) add() {
	if b != nil {
		b.shown.Add(1)
	}
}

// finish takes the bar off the screen.
func (b *bar) finish() { b.clear() }
