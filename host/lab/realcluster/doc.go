// Package realcluster runs a real Kubernetes cluster on one machine, without a container engine, a virtual machine or a registry:
// etcd, API server, controllers and scheduler, and nodes with containerd, runc, CNI plugins and a kubelet each.
//
// A node is a set of namespaces (network, mount, UTS, IPC, PID and cgroup) in which process 1 is this program, run again: a
// program that uses this package calls Enter first, a test Main. The nodes' root file system is the machine's, with a /etc, /run,
// /tmp and /var of their own. Containers that are privileged there are root on this machine: a cluster is no place for what one
// does not trust.
//
// Everything ends with the process that called Start, even if it is killed, except the files in Config.Dir and the nodes'
// cgroups, which Close, or else Clean, removes. The machine's own network, sysctls and cgroups are not changed.
package realcluster
