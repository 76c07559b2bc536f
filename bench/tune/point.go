package tune

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/gollective/gollective/collective/plan"
)

// Place is what a point is about.
type Place struct {
	Placement
	Collective string // as nccl-tests calls it
	Bytes      int    // in the larger of a rank's two buffers
}

// Point is what was measured at one place.
type Point struct {
	Place
	Model Choice // what the library chooses of itself
	Times []Timing
}

// Choice is a plan.Choice by its names. Channels is 0 where it was left to the
// library.
type Choice struct {
	Algorithm, Protocol string
	Channels            int `json:",omitempty"`
}

func (c Choice) String() string {
	text := c.Algorithm + "/" + c.Protocol
	if c.Channels > 0 {
		text += fmt.Sprintf("/%d", c.Channels)
	}
	return text
}

// Timing is the time of a choice, in us: the median of its batches, the least and
// the greatest. A choice that was left out after the first calls has one batch.
type Timing struct {
	Choice
	Micros, Least, Most float64
}

func newTiming(c Choice, batches []float64) Timing {
	sorted := slices.Sorted(slices.Values(batches))
	n := len(sorted)
	return Timing{c, (sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// noise is the share by which times differ that mean nothing.
const noise = 0.03

// best is the timing of the fastest choice.
func (p *Point) best() Timing {
	return slices.MinFunc(p.Times, func(a, b Timing) int {
		if a.Micros < b.Micros {
			return -1
		}
		return 1
	})
}

// of is the timing of a choice. Where channels were forced, a choice without stands
// for its fastest number.
func (p *Point) of(c Choice) (Timing, bool) {
	found, best := false, Timing{Micros: math.Inf(1)}
	for _, t := range p.Times {
		if t.Algorithm == c.Algorithm && t.Protocol == c.Protocol && (c.Channels == 0 || t.Channels == 0 || t.Channels == c.Channels) && t.Micros < best.Micros {
			found, best = true, t
		}
	}
	return best, found
}

// model is the timing of the library's own choice.
func (p *Point) model() (Timing, bool) { return p.of(p.Model) }

// winner is the choice for the file: within the noise, the model's wins over the one
// of the next smaller size, and that over the fastest.
func (p *Point) winner(before Choice) Choice {
	best := p.best()
	if t, ok := p.model(); ok && t.Micros <= best.Micros*(1+noise) {
		return t.Choice
	}
	if t, ok := p.of(before); ok && t.Choice == before && t.Micros <= best.Micros*(1+noise) {
		return before
	}
	return best.Choice
}

// plan is the choice that a rule makes.
func (c Choice) plan() (plan.Choice, error) {
	a, err := plan.ParseAlgorithm(c.Algorithm)
	if err != nil {
		return plan.Choice{}, err
	}
	p, err := plan.ParseProtocol(c.Protocol)
	return plan.Choice{Algorithm: a, Protocol: p, Channels: c.Channels}, err
}

// sane reports whether a point can be what this tool has written.
func (p *Point) sane() bool {
	return len(p.Times) > 0 && !slices.ContainsFunc(p.Times, func(t Timing) bool {
		_, err := t.plan()
		return err != nil || !(t.Micros > 0)
	})
}

// readPoints reads what earlier runs have kept; there may be no file yet.
func readPoints(name string) ([]Point, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var points []Point
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		var p Point
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil || !p.sane() {
			return nil, fmt.Errorf("%s:%d: not a point that was measured (%w)", name, number, errors.Join(err, errPoint))
		}
		points = append(points, p)
	}
	return points, lines.Err()
}

var errPoint = errors.New("it needs a place, and times of choices")
