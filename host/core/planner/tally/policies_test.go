package tally

import (
	"fmt"
	"testing"
)

func TestPoliciesThatAreIdleAreForgottenAtLast(t *testing.T) {
	var k Policies
	stays := k.Of("stays", "1")
	k.Replace(nil, stays)
	var last *PolicyCount
	for i := range 3 * maxIdlePolicies {
		c := k.Of("p", fmt.Sprint(i))
		k.Replace(last, c)
		last = c
	}
	if len(k.all) != maxIdlePolicies+2 || k.Of("stays", "1") != stays || k.Of("p", fmt.Sprint(3*maxIdlePolicies-2)).idleFrom == 0 {
		t.Errorf("%d policies", len(k.all))
	}
}
