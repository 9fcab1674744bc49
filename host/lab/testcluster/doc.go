// Package testcluster runs a real Kubernetes control plane for tests and benchmarks: etcd, kube-apiserver and
// kube-controller-manager, and kubectl to speak to them. There is no kubelet and no scheduler: Nodes and Pods are
// objects that the test makes, and whose status it writes.
//
// Everything runs in one network namespace, a host of testnet or the process's own, and ends with the process that
// started it, however that ends. The programs come from binaries.Find.
package testcluster
