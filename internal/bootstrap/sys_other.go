//go:build !linux

package bootstrap

import (
	"net"
	"time"
)

// haveLocal: elsewhere a unix socket is a file, which a killed process leaves
// behind; jobs of one host use loopback TCP instead.
const haveLocal = false

func setUnackedTimeout(*net.TCPConn, time.Duration) error { return nil }

func checkPeerUser(*net.UnixConn) error { return nil }

func hostDetails() string { return "" }
