package netlab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cable carries frames between a host's interface and the switch: each end is a packet
// socket on the inner end of a veth pair.
//
//	host   eth0 ── port0 │ this process │ jack0 ── plug0   bridge
type cable struct {
	host, center *os.File
	running      sync.WaitGroup
	taken        chan struct{} // closed when the cable is
}

// frame is a frame as packet sockets give it, after a header of theirs that says what
// an interface has yet to do: checksums, and cutting it into packets.
type frame struct {
	due   time.Time
	bytes []byte
}

const (
	mostFrame   = 10 + 14 + 4 + 65536 // header, Ethernet, tag, the longest packet
	mostWaiting = 1 << 14             // frames on their way; more are lost
	packetRoom  = 64 << 20            // of a socket, in bytes
)

// lay puts a cable between the host and the switch.
func (h *Host) lay(c Cable) {
	t := h.lab.t
	t.Helper()
	center := h.lab.center
	jack := fmt.Sprintf("jack%d", h.index)
	h.port = fmt.Sprintf("plug%d", h.index)
	center.batch(
		fmt.Sprintf("link set %s nomaster", h.socket()),
		fmt.Sprintf("link add %s type veth peer name %s", h.port, jack),
		fmt.Sprintf("link set %s up", jack),
		fmt.Sprintf("link set %s master bridge up", h.port))
	k := &cable{taken: make(chan struct{})}
	var err error
	if k.host, err = center.packetSocket(h.socket()); err == nil {
		k.center, err = center.packetSocket(jack)
	}
	if err != nil {
		t.Skipf("netlab: no packet sockets here: %v", err)
	}
	k.running.Go(func() { k.carry(k.center, k.host, Cable{}) })
	k.running.Go(func() { k.carry(k.host, k.center, c) })
	h.cable = k
}

// unlay takes the cable away.
func (h *Host) unlay() {
	h.lab.t.Helper()
	if h.cable == nil {
		return
	}
	h.cable.close()
	h.cable = nil
	h.lab.center.batch("link del "+h.port, fmt.Sprintf("link set %s master bridge", h.socket()))
	h.port = h.socket()
}

func (k *cable) close() {
	close(k.taken)
	k.host.Close()
	k.center.Close()
	k.running.Wait()
}

// packetSocket gets the frames that arrive at an interface, and sends some out of it.
func (h *Host) packetSocket(device string) (f *os.File, err error) {
	err = h.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the network's order
		// Without a protocol until it is bound: else it gets frames of all interfaces.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetRoom),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, packetRoom),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
		if err != nil {
			unix.Close(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), device)
		return nil
	})
	return f, err
}

// carry takes frames from one end to the other until the cable is taken away. Those
// with a delay wait in a queue, in order: they all have the same.
func (k *cable) carry(from, to *os.File, c Cable) {
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	waiting := make(chan frame, mostWaiting)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer close(waiting)
	sender.Go(func() {
		for f := range waiting {
			k.sleepUntil(f.due)
			_, _ = to.Write(f.bytes) // what an interface refuses is lost, as it would be anywhere
		}
	})
	buffer := make([]byte, mostFrame)
	for {
		n, err := from.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil { // the interface is being set up, or was told to be silent
			continue
		}
		lost, overtakes := rng.Float64() < c.Loss, rng.Float64() < c.Reorder
		switch {
		case lost:
		case c.Delay == 0 || overtakes:
			_, _ = to.Write(buffer[:n])
		default:
			select {
			case waiting <- frame{time.Now().Add(c.Delay), append([]byte(nil), buffer[:n]...)}:
			default:
			}
		}
	}
}

// sleepUntil returns early when the cable is taken away.
func (k *cable) sleepUntil(due time.Time) {
	left := time.Until(due)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.taken:
	}
}
