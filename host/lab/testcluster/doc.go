// Package testcluster runs a real Kubernetes control plane for tests and benchmarks: etcd, kube-apiserver and
// kube-controller-manager, and kubectl. There is no kubelet and no scheduler: the test creates Nodes and Pods and writes
// their status.
//
// All programs run in one network namespace, a testnet host's or the process's own, and end with the process that started
// them, even if it is killed. binaries.Find locates them.
package testcluster
