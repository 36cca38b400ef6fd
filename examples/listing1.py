"""Listing 1 of the ProvLight paper. As printed it is not valid Python: its ids are f-strings here."""

from edge_agent.capture import Data, Task, Workflow

attributes = 100
chained_transformations = 5
number_of_tasks = 100
# Application Workflow
workflow = Workflow(1)
workflow.begin()
# Tasks and data derivations
data_id = 0
previous_task = []
in_data = {"in": [1 for _ in range(attributes)]}
out_data = {"out": [2 for _ in range(attributes)]}
for transf_id in range(chained_transformations):
    for task_id in range(int(number_of_tasks / chained_transformations)):
        data_id += 1
        task = Task(f"{transf_id}-{task_id}", workflow, transf_id, dependencies=previous_task)
        data_in = Data(f"in_{data_id}", workflow.id, in_data)
        task.begin([data_in])
        #### ADD YOUR TASK HERE ####
        data_out = Data(f"out_{data_id}", workflow.id, out_data)
        task.end([data_out])
        previous_task = [task.id]
workflow.end()
