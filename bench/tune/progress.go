package tune

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far a run is, on a terminal. A nil bar shows nothing.
type bar struct{ shown *progressbar.ProgressBar }

func newBar(w io.Writer, points int) *bar {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || points == 0 {
		return nil
	}
	return &bar{progressbar.NewOptions(points,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionUseANSICodes(false),
	)}
}

// describe says what is being measured.
func (b *bar) describe(text string) {
	if b != nil {
		b.shown.Describe(text)
	}
}

// clear makes room for lines of text.
func (b *bar) clear() {
	if b != nil {
		b.shown.Clear()
	}
}

// add counts a point.
func (b *bar) add() {
	if b != nil {
		b.shown.Add(1)
	}
}
