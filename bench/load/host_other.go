//go:build !linux

package load

import "time"

// hostTime is not known on this system.
func hostTime() time.Duration { return -1 }
