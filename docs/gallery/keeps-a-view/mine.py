
import torch


def factory(config):
    def pool(hidden_states, metadata):
        cursor = metadata.get_pooling_cursor()
        chunks = hidden_states.split_with_sizes(cursor.num_scheduled_tokens_cpu.tolist())
        outputs = []
        for state, chunk, done in zip(metadata.pooling_states, chunks, cursor.get_finished_mask()):
            state.hidden_states_cache.append(chunk)
            outputs.append(torch.cat(state.hidden_states_cache) if done else None)
            if done:
                state.clean()
        return outputs

    return pool
