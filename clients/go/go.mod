module sluicegate

go 1.19
