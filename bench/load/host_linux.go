package load

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"github.com/gollective/gollective/internal/affinity"
)

// hostTime is what all processes together, and other guests of the machine below,
// have used so far of the processors that this process may use; -1 if that is not
// known. It is counted in ticks of 10 ms.
func hostTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return -1
	}
	return busyOf(text, affinity.Own().List())
}

// tick is the unit of /proc/stat, USER_HZ: 100 per second on all of Go's
// architectures.
const tick = 10 * time.Millisecond

// Columns of a line of /proc/stat, after the name. Guests' time is in user's.
const (
	columnIdle   = 3
	columnIOWait = 4
	columnSteal  = 7
)

// busyOf adds up the time that was not idle on the given processors.
func busyOf(stat []byte, processors []int) time.Duration {
	wanted := make(map[string]bool)
	for _, p := range processors {
		wanted["cpu"+strconv.Itoa(p)] = true
	}
	busy, lines := time.Duration(0), 0
	for line := range bytes.Lines(stat) {
		fields := bytes.Fields(line)
		if len(fields) < columnSteal+2 || !wanted[string(fields[0])] {
			continue
		}
		lines++
		for column, field := range fields[1 : columnSteal+2] {
			if column == columnIdle || column == columnIOWait {
				continue
			}
			n, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return -1
			}
			busy += time.Duration(n) * tick
		}
	}
	if lines == 0 {
		return -1
	}
	return busy
}
