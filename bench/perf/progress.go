package perf

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows how far a run is, on a terminal and only if the run is long enough to
// make one wonder. A nil bar shows nothing.
type bar struct {
	shown *progressbar.ProgressBar
	start time.Time
	done  int // rows
}

// patience is how long a run may take before its bar appears.
const patience = 2 * time.Second

// newBar returns nil where w is not a terminal or the number of rows is not known.
func newBar(w io.Writer, rows int) *bar {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || rows == 0 {
		return nil
	}
	return newBarOn(w, rows)
}

func newBarOn(w io.Writer, rows int) *bar {
	return &bar{
		start: time.Now(),
		shown: progressbar.NewOptions(rows,
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetRenderBlankState(false),
			progressbar.OptionUseANSICodes(false),
		),
	}
}

// clear makes room for a line of text.
func (b *bar) clear() {
	if b != nil && b.visible() {
		b.shown.Clear()
	}
}

// add counts a row.
func (b *bar) add() {
	if b == nil {
		return
	}
	b.done++
	if b.visible() {
		b.shown.Set(b.done)
	}
}

func (b *bar) visible() bool { return time.Since(b.start) >= patience }

// finish takes the bar off the screen.
func (b *bar) finish() {
	if b != nil && b.visible() {
		b.shown.Clear()
	}
}
