package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// report is the JSON document: everything that the table and the verdicts are made
// of, and more digits.
type report struct {
	Format   int        `json:"format"` // 1
	Version  string     `json:"version"`
	Time     string     `json:"time"`
	Ranks    int        `json:"ranks"`
	Channels int        `json:"channels"`
	Duration float64    `json:"seconds_per_phase"`
	LateBy   float64    `json:"late_by_ms"`
	Idle     int        `json:"idle_communicators"`
	Cases    []*Figures `json:"cases"`
	Verdicts []Verdict  `json:"verdicts"`
}

func writeReport(w io.Writer, o *Options, all []*Figures, verdicts []Verdict) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(report{
		Format: 1, Version: o.Version, Time: time.Now().Format(time.RFC3339),
		Ranks: o.Ranks, Channels: o.Channels, Duration: o.Duration.Seconds(),
		LateBy: lateBy.Seconds() * 1e3, Idle: idleComms,
		Cases: all, Verdicts: verdicts,
	})
}

// createReport creates the file: path, or path.0, path.1 and so on where that exists
// already, as perf's. Nothing is overwritten.
func createReport(path string) (*os.File, error) {
	name := path
	for try := 0; ; try++ {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return f, err
		}
		name = fmt.Sprintf("%s.%d", path, try)
	}
}
