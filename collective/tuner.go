package collective

import (
	"bytes"
	"fmt"
	"os"
	"sync"

	"github.com/gollective/gollective/collective/plan"
)

// foreignTold are the tuner files of whose foreign lines a warning has told.
var foreignTold sync.Map

// readTuning reads c.TunerFile, if there is one.
func (c Config) readTuning() (*plan.Tuning, error) {
	if c.TunerFile == "" {
		return nil, nil
	}
	failed := func(err error) error {
		given, ok := c.origins["TunerFile"]
		if !ok {
			given = "Config.TunerFile"
		}
		return fmt.Errorf("%w: %s: %w", ErrInvalid, given, err)
	}
	if about, err := os.Stat(c.TunerFile); err != nil {
		return nil, failed(err)
	} else if !about.Mode().IsRegular() {
		return nil, failed(fmt.Errorf("accepted are files, not %v", about.Mode()))
	}
	file, err := os.Open(c.TunerFile)
	if err != nil {
		return nil, failed(err)
	}
	defer file.Close()
	t, err := plan.ParseTuning(c.TunerFile, file)
	if err != nil {
		return nil, failed(err)
	}
	if len(t.Foreign) > 0 {
		if _, told := foreignTold.LoadOrStore(c.TunerFile, true); !told {
			c.Logger.Warn("lines of the tuner file don't apply here", "file", c.TunerFile, "lines", t.Foreign)
		}
	}
	c.Logger.Debug("collective: tuner file read", "file", c.TunerFile, "rules", len(t.Rules))
	return t, nil
}

// tuned is what a process tells the others of its tuner file. All must have the
// same rules, wherever they have them from: plans depend on them.
type tuned struct {
	File  string // for messages
	Rules int
	Marks []byte // of the rules
}

func (c Config) tuned() tuned {
	t := tuned{File: c.TunerFile, Marks: c.tuning.Marks()}
	if c.tuning != nil {
		t.Rules = len(c.tuning.Rules)
	}
	return t
}

// String is what an error says of it.
func (t tuned) String() string {
	if t.File == "" {
		return "no tuner file"
	}
	return fmt.Sprintf("%d rules of %s", t.Rules, t.File)
}

// tunedDifferently is the error about two processes whose rules differ, nil if they
// don't. own are this process's rules.
func tunedDifferently(all []description, self, other int, own *plan.Tuning) error {
	mine, theirs := all[self].Tuned, all[other].Tuned
	if bytes.Equal(mine.Marks, theirs.Marks) {
		return nil
	}
	first := 0 // rule that differs
	for 4*first+4 <= min(len(mine.Marks), len(theirs.Marks)) && bytes.Equal(mine.Marks[4*first:4*first+4], theirs.Marks[4*first:4*first+4]) {
		first++
	}
	where := fmt.Sprintf("they differ from rule %d on, which is missing here", first+1)
	if own != nil && first < len(own.Rules) {
		where = fmt.Sprintf("they differ from rule %d on, here %s:%d: %s", first+1, mine.File, own.Rules[first].Line, own.Rules[first])
	}
	d := all[other]
	return fmt.Errorf("%w: tuner files differ: %s (process %d) has %s, %s (process %d, %s, pid %d) has %s; %s",
		ErrMismatch, ranksOf(all, self), self, mine, ranksOf(all, other), other, d.Host, d.PID, theirs, where)
}

// ranksOf names the ranks of a process in the communicator of all.
func ranksOf(all []description, number int) string {
	first := 0
	for _, d := range all[:number] {
		first += d.Ranks
	}
	if last := first + all[number].Ranks - 1; last > first {
		return fmt.Sprintf("ranks %d-%d", first, last)
	}
	return fmt.Sprintf("rank %d", first)
}
