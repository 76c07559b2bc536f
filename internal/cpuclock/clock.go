// Package cpuclock tells how much processor time single threads have used: what
// shows which of them waits by polling and which by sleeping.
//
// Linux has a clock for every thread. It costs some hundred nanoseconds to read,
// a system call; ten times as much as the time of day.
package cpuclock

import "errors"

// ErrUnsupported is the answer of systems that have no clocks of threads.
var ErrUnsupported = errors.New("cpuclock: this system does not tell the processor time of a thread")
