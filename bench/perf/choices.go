package perf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gollective/gollective/collective/plan"
)

// choices remembers which algorithm each size took.
type choices struct {
	done    []string // finished series, without repetitions
	current []choiceRange
}

// choiceRange are consecutive sizes with the same choice.
type choiceRange struct {
	first, last int // bytes
	plan.Choice
}

// add must be called in the order of the rows. A size that is not larger than the
// last begins a new series.
func (c *choices) add(j *job, taken plan.Choice) {
	if taken.Protocol == plan.AutoProtocol {
		return // nothing to move
	}
	size := j.bytes()
	n := len(c.current)
	switch {
	case n > 0 && size < c.current[n-1].last:
		c.finish()
	case n > 0 && taken == c.current[n-1].Choice:
		c.current[n-1].last = size
		return
	}
	c.current = append(c.current, choiceRange{size, size, taken})
}

func (c *choices) finish() {
	var parts []string
	for _, r := range c.current {
		channels := ""
		if r.Channels > 1 {
			channels = fmt.Sprintf(" on %d channels", r.Channels)
		}
		sizes := readable(r.first)
		if r.last != r.first {
			sizes += " to " + readable(r.last)
		}
		parts = append(parts, fmt.Sprintf("%s %v/%v%s", sizes, r.Algorithm, r.Protocol, channels))
	}
	line := strings.Join(parts, ", ")
	if line != "" && !slices.Contains(c.done, line) {
		c.done = append(c.done, line)
	}
	c.current = nil
}

// lines is one line for all series that made the same choices.
func (c *choices) lines() []string {
	c.finish()
	return c.done
}

// readable writes a size with the largest binary unit that divides it.
func readable(bytes int) string {
	unit := 0
	for bytes != 0 && bytes%1024 == 0 && unit < 3 {
		bytes, unit = bytes/1024, unit+1
	}
	return fmt.Sprintf("%d %s", bytes, [...]string{"B", "KiB", "MiB", "GiB"}[unit])
}
