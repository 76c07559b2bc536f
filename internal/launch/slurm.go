package launch

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

const (
	sourceSlurm    = "Slurm"
	sourceSlurmPMI = "Slurm (PMI)"
)

// slurm reads what srun sets for each task of a step. Outside a step, in a batch
// script or under salloc, the same names describe the allocation: not ours.
func slurm(e *environment) (*claim, error) {
	if e.get("SLURM_STEP_ID") == "" {
		return nil, nil
	}
	sizeVar, _ := e.first("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
	if sizeVar == "" {
		sizeVar = "SLURM_STEP_NUM_TASKS"
	}
	c, ok, err := e.identity(sourceSlurm, "SLURM_PROCID", sizeVar, "", "")
	if err != nil || !ok {
		return nil, err
	}
	if err := slurmLocal(e, c); err != nil {
		return nil, err
	}
	c.key = c.key.with("SLURM_JOB_ID, SLURM_STEP_ID", KeyPublic, e.get("SLURM_CLUSTER_NAME"),
		e.get("SLURM_JOB_ID"), e.get("SLURM_STEP_ID"), e.get("SLURM_JOB_START_TIME"))
	c.meet = func() (Rendezvous, error) { return slurmPlace(e, c) }
	return c, nil
}

// slurmLocal finds the local size in the list of tasks per node.
func slurmLocal(e *environment, c *claim) error {
	local, err := e.number("SLURM_LOCALID")
	if err != nil {
		return err
	}
	node, err := e.number("SLURM_NODEID")
	if err != nil {
		return err
	}
	name, list := e.first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
	if local < 0 || node < 0 || name == "" {
		return nil
	}
	tasks, err := tasksOnNode(list, node)
	if err != nil {
		return valuef("%s=%s: %v", name, shown(list), err)
	}
	c.localRank, c.localSize = local, tasks
	return nil
}

// tasksOnNode reads 4(x2),3: two nodes with four tasks, one with three.
func tasksOnNode(list string, node int) (int, error) {
	for _, part := range strings.Split(list, ",") {
		text, repeat, repeated := strings.Cut(part, "(x")
		count, err := strconv.ParseUint(text, 10, 24)
		if err != nil || count == 0 {
			return 0, fmt.Errorf("%s is not a number of tasks", shown(part))
		}
		times := uint64(1)
		if repeated {
			repeat, closed := strings.CutSuffix(repeat, ")")
			times, err = strconv.ParseUint(repeat, 10, 24)
			if err != nil || !closed || times == 0 {
				return 0, fmt.Errorf("%s is not a repeated number of tasks", shown(part))
			}
		}
		if uint64(node) < times {
			return int(count), nil
		}
		node -= int(times)
	}
	return 0, errors.New("it ends before the node that SLURM_NODEID names")
}

// slurmPlace is the first node of the step, where srun puts task 0, and a port
// reserved by srun --resv-ports or made from the job and step.
func slurmPlace(e *environment, c *claim) (Rendezvous, error) {
	port, from := c.key.port(), "port from "+c.key.From
	if v := e.get("SLURM_STEP_RESV_PORTS"); v != "" {
		var err error
		if port, err = firstPort(v); err != nil {
			return Rendezvous{}, err
		}
		from = "SLURM_STEP_RESV_PORTS"
	}
	if c.localSize == c.size {
		return Rendezvous{
			Kind: Address, From: "one host, " + from, SameHost: true,
			Addresses: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))},
		}, nil
	}
	name, list := e.first("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
	if name == "" {
		return Rendezvous{}, fmt.Errorf("%w: SLURM_STEP_NODELIST is not set; set %s", ErrNoRendezvous, envRoot)
	}
	// A distribution by hand can put task 0 elsewhere: the task itself knows.
	if node := e.get("SLURM_NODEID"); c.rank == 0 && node != "" && node != "0" {
		return Rendezvous{}, fmt.Errorf("%w: task 0 is on node %s of the step, not on the first; set %s=HOST:PORT to %s and a free port",
			ErrNoRendezvous, node, envRoot, e.get("SLURMD_NODENAME"))
	}
	first, err := FirstNode(list)
	if err != nil {
		return Rendezvous{}, valuef("%s=%s: %v", name, shown(list), err)
	}
	return Rendezvous{
		Kind: Address, From: "first of " + name + ", " + from,
		Addresses: []string{net.JoinHostPort(first, strconv.Itoa(port))},
	}, nil
}

// firstPort reads 12000-12007,12010.
func firstPort(list string) (int, error) {
	first, _, _ := strings.Cut(list, ",")
	first, _, _ = strings.Cut(first, "-")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil || n == 0 {
		return 0, valuef("SLURM_STEP_RESV_PORTS=%s does not begin with a port", shown(list))
	}
	return int(n), nil
}
