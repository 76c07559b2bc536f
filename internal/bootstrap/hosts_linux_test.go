package bootstrap

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/netlab"
)

// Two ranks on each of two hosts, with ids of both kinds, find one another at
// addresses that mean something to each; a loopback address is told to nobody.
func TestTwoHosts(t *testing.T) {
	byName, err := MakeID([]byte(t.Name()), "host0:5000")
	require.NoError(t, err)
	for _, tc := range []struct {
		name   string
		id     ID
		decoys int
	}{
		{"an id that was handed over", ID{}, 3},
		{"a name that is loopback on one host", byName, 3},
		// oneCCL issue 209: many interfaces, and the job waits forever.
		{"twenty interfaces too many", ID{}, 20},
		{"a name and twenty interfaces too many", byName, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fourOnTwoHosts(t, netlab.New(t, 2, netlab.LoopbackNames(), netlab.Decoys(tc.decoys)), tc.id)
		})
	}
}

func fourOnTwoHosts(t *testing.T, l *netlab.Lab, id ID) {
	const n = 4
	cs := make([]*child, n)
	first := l.Host(0).Command(os.Args[0])
	first.Env = []string{childListen + "=yes"}
	cs[0] = startCommand(t, first, id, 0, n, patient)
	id, err := ParseID(strings.TrimPrefix(cs[0].until(t, "id "), "id "))
	require.NoError(t, err)
	for r := 1; r < n; r++ {
		cs[r] = startCommand(t, l.Host(r%2).Command(os.Args[0]), id, r, n, patient)
	}
	for r, c := range cs {
		c.until(t, "joined")
		c.say(t, fmt.Sprintf("hello from %d", r))
	}
	for r, c := range cs {
		for from := range n {
			if from != r {
				c.until(t, fmt.Sprintf("message %d hello from %d", from, from))
			}
		}
	}
	require.NoError(t, cs[3].cmd.Process.Kill())
	for r := range 3 {
		cs[r].until(t, "lost 3")
		cs[r].say(t, "close")
	}
	for r := range 3 {
		<-cs[r].gone
		require.Equal(t, []string{"3"}, cs[r].said("lost"))
		require.Empty(t, cs[r].said("close"))
	}
}
