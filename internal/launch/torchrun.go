package launch

import (
	"fmt"
	"net"
	"strconv"
)

// torchrun reads what torchrun, torch.distributed.launch and Kubeflow's
// PyTorchJob set for each worker.
func torchrun(e *environment) (*claim, error) {
	c, ok, err := e.identity("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
	if err != nil || !ok {
		return nil, err
	}
	// The restart count changes when the agent starts the workers anew: those
	// left from the round before must not join.
	run, restart := e.get("TORCHELASTIC_RUN_ID"), e.get("TORCHELASTIC_RESTART_COUNT")
	if run != "" {
		c.key = c.key.with("TORCHELASTIC_RUN_ID", KeyPublic, run, restart)
	}
	c.meet = func() (Rendezvous, error) {
		r, err := masterPlace(e)
		r.SameHost = c.localSize == c.size
		return r, err
	}
	return c, nil
}

// masterPlace is MASTER_ADDR with a port made from MASTER_PORT: on MASTER_PORT
// itself torchrun's agent may serve its own store.
func masterPlace(e *environment) (Rendezvous, error) {
	host, port := e.get("MASTER_ADDR"), e.get("MASTER_PORT")
	switch {
	case host == "" && port == "":
		return Rendezvous{}, fmt.Errorf("%w: MASTER_ADDR and MASTER_PORT are not set; set them or %s", ErrNoRendezvous, envRoot)
	case host == "":
		return Rendezvous{}, fmt.Errorf("%w: MASTER_PORT is set, MASTER_ADDR is not; set it or %s", ErrNoRendezvous, envRoot)
	case port == "":
		return Rendezvous{}, fmt.Errorf("%w: MASTER_ADDR is set, MASTER_PORT is not; set it or %s", ErrNoRendezvous, envRoot)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Rendezvous{}, valuef("MASTER_PORT=%s is not a number from 1 to 65535", shown(port))
	}
	address := net.JoinHostPort(host, strconv.Itoa(besidePort(int(n))))
	if err := checkAddress("MASTER_ADDR", address); err != nil {
		return Rendezvous{}, err
	}
	return Rendezvous{Kind: Address, From: "MASTER_ADDR, MASTER_PORT=" + port, Addresses: []string{address}}, nil
}

// besidePort is the port beside a MASTER_PORT: 1000 above it, which leaves room
// for the neighbouring ports that jobs on one host like to take; for a port
// from Linux's range for outgoing connections, which torchrun picks by itself,
// one below that range.
func besidePort(master int) int {
	const ephemeral = 32768
	if master+1000 < ephemeral {
		return master + 1000
	}
	return portBase + master%portCount
}
