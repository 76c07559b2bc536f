//go:build !linux

package collective

import "os"

func ownMachine() string {
	host, _ := os.Hostname()
	return host
}
