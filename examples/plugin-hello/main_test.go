package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

func TestLocalEndpointsGetALargerShare(t *testing.T) {
	req := sdktest.NewRequest("a", nil, sdktest.Local("a"), sdktest.Ready("a"), sdktest.Unchosen("b"))
	resp, err := sdktest.Run(newPlugin(), `{"factor":5}`, req)
	if err != nil {
		t.Fatal(err)
	}
	if got := sdktest.Answers(resp); !slices.Equal(got, []float64{5, 1, 0}) {
		t.Errorf("shares %v", got)
	}
	if got := resp.Results[0].Reason; got != "on this node" {
		t.Errorf("reason %q", got)
	}
}

func TestFactorOutOfRangeIsRefused(t *testing.T) {
	if err := newPlugin().Configure([]byte(`{"factor":0}`)); err == nil || !strings.Contains(err.Error(), "factor") {
		t.Error(err)
	}
}
