package main

import "math"

// expected returns the share of each Pod in new connections, computed from the cluster alone: an independent check of
// sluice's decision, in addition to whether the kernel follows it.
//
// It implements the boutique's policy. lifecycle: a terminating endpoint counts as the fraction part of one. Then
// locality: with e a zone's share of the endpoints and d its share of the demand (CPU of its nodes), the zone of the client
// keeps min(1, e ÷ d), and the others share the rest in proportion to their spare capacity max(0, e − d).
func expected(zone string, demand map[string]float64, pods []pod, part float64) map[string]float64 {
	weight := map[condition]float64{ready: 1, terminating: part}
	capacity, allCapacity, allDemand := map[string]float64{}, 0.0, 0.0
	for _, p := range pods {
		capacity[p.zone] += weight[p.state]
		allCapacity += weight[p.state]
	}
	for _, d := range demand {
		allDemand += d
	}
	spare, allSpare := map[string]float64{}, 0.0
	for z, c := range capacity {
		if z != zone {
			spare[z] = max(0, c/allCapacity-demand[z]/allDemand)
			allSpare += spare[z]
		}
	}
	kept := min(1, (capacity[zone]/allCapacity)/(demand[zone]/allDemand))
	share := map[string]float64{zone: kept}
	for z, s := range spare {
		if kept < 1 {
			share[z] = (1 - kept) * s / allSpare
		}
	}
	out := map[string]float64{}
	for _, p := range pods {
		if capacity[p.zone] > 0 {
			out[p.name] = share[p.zone] * weight[p.state] / capacity[p.zone]
		}
	}
	return out
}

// tolerance allows for small integer weights: locality accepts a deviation of 1 % of the connections.
const tolerance = 0.01

// deviates reports whether a measured share deviates from the expected one by more than the tolerance and five standard
// deviations of a sample of n connections. If the expected share is 0, a single connection deviates.
func deviates(measured, expected float64, n int) bool {
	if expected == 0 {
		return measured > 0
	}
	return math.Abs(measured-expected) > tolerance+5*math.Sqrt(expected*(1-expected)/float64(n))
}
