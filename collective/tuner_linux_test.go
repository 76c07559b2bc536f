package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// tunedRole tells what is chosen for 1000 bytes, in the communicator of all and in
// the one that is left of it without rank 0.
var tunedRole = role("tuned", func(p *player) error {
	var config collective.Config
	p.arguments(&config)
	c, err := collective.Init(context.Background(), config)
	if err != nil {
		p.tell("chosen", err)
		return nil
	}
	defer c.Close()
	choice := func(c *collective.Comm) string {
		b := make([]byte, 1000)
		call := collective.Call{Kind: plan.AllReduce, Type: dtype.Uint8, Op: collective.Sum, Count: len(b), Send: b, Recv: b}
		plan, perr := c.Plan(call)
		if err = errors.Join(err, perr, c.Do(context.Background(), call)); perr != nil {
			return perr.Error()
		}
		return fmt.Sprint(plan.Choice.Algorithm, " ", plan.Choice.Protocol)
	}
	chosen := choice(c)
	if c.Rank() > 0 {
		rest, serr := c.Shrink(context.Background(), []int{0})
		if serr != nil {
			return serr
		}
		defer rest.Close()
		chosen += ", " + choice(rest)
	}
	p.report(report{What: "chosen", Text: chosen, Error: nameOf(err)})
	return nil
})

func TestProcessesAgreeOnTunerFiles(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "tuner.csv")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	three, two := "allreduce,0,-1,tree,simple,-1,-1,3\n", "allreduce,0,-1,oneshot,ll,-1,-1,2\n"
	whole, copied := file(three+two), file("# the same\n"+three+two)
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			all := func(files ...string) *cast {
				return stage(t, staging{role: tunedRole, size: 3, each: func(number int) any {
					return collective.Config{Transport: transport, TunerFile: files[number]}
				}})
			}
			t.Run("equal", func(t *testing.T) {
				c := all(whole, copied, whole)
				for number, r := range c.reported("chosen", c.all()...) {
					require.Nil(t, r.Error, "%v", r.Error)
					want := "tree simple"
					if number > 0 {
						want += ", oneshot ll"
					}
					assert.Equal(t, want, r.Text)
				}
				c.succeed(c.all()...)
			})
			for name, files := range map[string][]string{
				"one has none": {whole, "", whole}, "one has it": {"", "", whole}, "one has less": {file(three), whole, copied},
			} {
				t.Run(name, func(t *testing.T) {
					c := all(files...)
					for _, r := range c.reported("chosen", c.all()...) {
						require.NotNil(t, r.Error)
						assert.Contains(t, r.Error.Text, "tuner files differ")
						assert.Contains(t, r.Error.Text, fmt.Sprintf("rank %d (process %d)", r.Process, r.Process))
					}
					c.succeed(c.all()...)
				})
			}
		})
	}
}
