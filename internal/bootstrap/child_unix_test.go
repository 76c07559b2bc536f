//go:build unix

package bootstrap

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stopped process is not dead: the others talk on around it, and it hears
// everything when it goes on. Stopped and then killed, it is.
func TestStoppedProcessesAreNotDead(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			const n = 6
			root := startRoot(t, ListenConfig{Network: network})
			cs := make([]*child, n)
			for r := range n {
				cs[r] = startChild(t, root.ID(), r, n, patient)
			}
			for _, c := range cs {
				c.until(t, "joined")
			}
			// Both neighbours of rank 2, so that the bare ring would be cut.
			stopped := []int{1, 3}
			running := []int{0, 2, 4, 5}
			for _, r := range stopped {
				require.NoError(t, cs[r].cmd.Process.Signal(syscall.SIGSTOP))
			}
			for _, r := range running {
				cs[r].say(t, fmt.Sprintf("one from %d", r))
			}
			for _, r := range running {
				for _, from := range running {
					if r != from {
						cs[r].until(t, fmt.Sprintf("message %d one from %d", from, from))
					}
				}
			}
			// One leaves meanwhile: it does not wait for them for long.
			cs[4].say(t, "close")
			<-cs[4].gone
			require.Empty(t, cs[4].said("close"))
			for _, r := range stopped {
				require.NoError(t, cs[r].cmd.Process.Signal(syscall.SIGCONT))
			}
			for _, r := range stopped {
				for _, from := range running {
					cs[r].until(t, fmt.Sprintf("message %d one from %d", from, from))
				}
				cs[r].until(t, "left 4")
				cs[r].say(t, "awake")
			}
			for _, r := range []int{0, 2, 5} {
				for _, from := range stopped {
					cs[r].until(t, fmt.Sprintf("message %d awake", from))
				}
				require.Empty(t, cs[r].said("because"))
			}
			require.NoError(t, cs[3].cmd.Process.Signal(syscall.SIGSTOP))
			require.NoError(t, cs[3].cmd.Process.Kill())
			for _, r := range []int{0, 1, 2, 5} {
				cs[r].until(t, "lost 3")
				require.Len(t, cs[r].said("lost"), 1)
			}
		})
	}
}
