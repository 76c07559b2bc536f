// Package launch answers two questions a process has before it can join a
// communicator: who am I, and where do we meet? Find reads the answers from what
// the launcher left in the environment; it opens nothing, except where a launcher
// tells the rank only over its own connection (PMI_PORT).
//
// # Order
//
// The first complete set of a rank and a size is used:
//
//	Source         rank, size                         where the processes meet
//	config         Explicit                           Explicit.ID, Explicit.Root
//	GOLLECTIVE_*   GOLLECTIVE_RANK, GOLLECTIVE_SIZE   GOLLECTIVE_COMM_ID, GOLLECTIVE_ROOT
//	torchrun       RANK, WORLD_SIZE                   MASTER_ADDR, a port made from MASTER_PORT
//	Open MPI       OMPI_COMM_WORLD_RANK, _SIZE        this host, or mpirun's host
//	Hydra (PMI)    PMI_RANK, PMI_SIZE                 the launcher's key-value store
//	Slurm          SLURM_PROCID, SLURM_STEP_NUM_TASKS first node of SLURM_STEP_NODELIST
//	Kubernetes     JOB_COMPLETION_INDEX, COMPLETIONS  pod 0 of the Indexed Job
//	none           -                                  a world of one
//
// A meeting place given by hand (Explicit.ID or Root, else GOLLECTIVE_COMM_ID or
// GOLLECTIVE_ROOT) is used with every source. Where a source has none of its own,
// MASTER_ADDR and MASTER_PORT serve if they are set. An empty variable counts as
// not set.
//
// # Partial and contradictory sets
//
// Config and GOLLECTIVE_* win without being compared with anything. Of the
// launchers, every set that is found is compared with the chosen one. It may
// agree; it may describe the layer that started the chosen launcher, as srun
// starts one torchrun per node: then it has one process per host, and no more
// processes than the chosen world can have hosts. Everything else is an error
// that names two variables and their values. A set with a rank but no size, or a
// size but no rank, is an error when no set is complete.
//
// Slurm's variables count only inside a step that srun started: a batch script
// sees SLURM_PROCID=0 and the size of its allocation, but is one process.
//
// # How strong the secret is
//
// An id text carries its own random secret. An address does not, so Rendezvous
// derives one from whatever the processes of a job share; Key.Strength says what
// it is worth. Open MPI gives every job 128 random bits (KeyPrivate). torchrun,
// Slurm and Kubernetes give only a name (KeyPublic): two jobs that meet by
// accident notice it, but another user of the cluster can work the secret out.
// GOLLECTIVE_JOB_KEY adds a text of the user's own, and is as strong as that text:
//
//	export GOLLECTIVE_JOB_KEY=$(openssl rand -hex 16)   # in the batch script, before srun
//
// # Kubernetes
//
// The pods of an Indexed Job find pod 0 by name, so the Job needs a headless
// Service as its subdomain. Publishing addresses that aren't ready lets pod 0 be
// found while it starts:
//
//	apiVersion: v1
//	kind: Service
//	metadata: {name: ring}
//	spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {job-name: sum}}
//	---
//	apiVersion: batch/v1
//	kind: Job
//	metadata: {name: sum}
//	spec:
//	  completionMode: Indexed
//	  completions: 4
//	  parallelism: 4
//	  template:
//	    spec:
//	      subdomain: ring
//	      restartPolicy: Never
//	      containers:
//	      - name: sum
//	        image: example/sum
//	        env:
//	        - {name: GOLLECTIVE_SIZE, value: "4"}          # or COMPLETIONS
//	        - {name: GOLLECTIVE_SUBDOMAIN, value: ring}    # else read from /etc/hosts
//	        - name: GOLLECTIVE_JOB_KEY
//	          valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
//
// GOLLECTIVE_ROOT=sum-0.ring:29477 does the same without GOLLECTIVE_SUBDOMAIN.
package launch
