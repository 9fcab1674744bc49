package kube

import (
	"context"
	"testing"
)

// Without a node, Load reads all Nodes with their labels, whether or not a policy needs them.
func TestLoadOfAWholeCluster(t *testing.T) {
	server := newFakeServer(t)
	server.put(node("a", "z1"), node("b", "z2"))
	cluster, problems, err := Load(context.Background(), server.client(), "", nil)
	if err != nil || problems != nil {
		t.Fatal(err, problems)
	}
	if cluster.NodesPartial || len(cluster.Nodes) != 2 || cluster.Nodes["b"].Zone != "z2" || len(cluster.Nodes["b"].Labels) != 1 {
		t.Errorf("%+v", cluster.Nodes)
	}
	if cluster, _, err = Load(context.Background(), server.client(), "a", nil); err != nil || !cluster.NodesPartial || len(cluster.Nodes) != 1 {
		t.Errorf("as node a sees it: %+v %v", cluster.Nodes, err)
	}
}
