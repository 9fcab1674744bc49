// Package source converts Kubernetes objects to model values. Its sub-packages provide the objects: source/dir reads
// manifests, source/kube watches a cluster.
//
// A conversion drops only what is invalid: each invalid field becomes a Problem with object and field, and the rest of the
// object is used. What an API server would reject is rejected here too if it could misdirect traffic, because manifests in
// a directory have not passed an API server.
package source
