package herd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// keeper is the process that kills the groups when the launcher has died, seen
// from the launcher. It is told of every group as soon as that exists, and when it
// has ended. A nil keeper keeps nothing.
type keeper struct {
	cmd *exec.Cmd
	to  io.WriteCloser
}

func startKeeper(command []string) (*keeper, error) {
	if len(command) == 0 || !haveGroups {
		return nil, nil
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = keeperAttributes()
	to, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &keeper{cmd, to}, nil
}

// A keeper that has been killed can't be told any more. The ranks go on: they are
// no worse off than without one.

func (k *keeper) add(pgid int) {
	if k != nil {
		_, _ = fmt.Fprintf(k.to, "+%d\n", pgid)
	}
}

func (k *keeper) remove(pgid int) {
	if k != nil {
		_, _ = fmt.Fprintf(k.to, "-%d\n", pgid)
	}
}

// keeperTime is far more than a keeper needs to read the end of its pipe.
const keeperTime = 5 * time.Second

func (k *keeper) close() {
	if k == nil {
		return
	}
	k.to.Close()
	late := time.AfterFunc(keeperTime, func() { _ = k.cmd.Process.Kill() })
	defer late.Stop()
	_ = k.cmd.Wait()
}

// Keep is the keeper: it reads "+GROUP" and "-GROUP" lines until the launcher
// closes the pipe or dies, and kills what has been added and not removed. Lines of
// another form are an error, and end it without killing anything.
func Keep(from *os.File) error {
	ignoreSignals()
	groups := make(map[int]bool)
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		pgid, add, err := parseKeeperLine(lines.Text())
		if err != nil {
			return err
		}
		if add {
			groups[pgid] = true
		} else {
			delete(groups, pgid)
		}
	}
	for pgid := range groups {
		killLeftover(pgid)
	}
	return lines.Err()
}

func parseKeeperLine(line string) (pgid int, add bool, err error) {
	if line != "" && (line[0] == '+' || line[0] == '-') {
		// Group 1 is init's, and a negative 1 or 0 means all or the caller's own.
		if pgid, err := strconv.ParseUint(line[1:], 10, 31); err == nil && pgid > 1 {
			return int(pgid), line[0] == '+', nil
		}
	}
	return 0, false, fmt.Errorf("a keeper is told +GROUP or -GROUP, not %.40q", line)
}
